"""Adapters that let any transformers causal LM serve a ragged batch with free rollback."""

from __future__ import annotations

from fairdraft.models.cache import RaggedCache
from fairdraft.models.causal_lm import CausalLM
from fairdraft.models.loading import load_model

__all__ = ["CausalLM", "RaggedCache", "load_model"]
