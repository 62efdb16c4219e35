"""From a `SpeculativeConfig` to the engine that runs it."""

from __future__ import annotations

from typing import Any

from fairdraft.engine.adaptive import DraftSchedule
from fairdraft.engine.config import SpeculativeConfig
from fairdraft.engine.core import Engine
from fairdraft.models import CausalLM
from fairdraft.speculators import Speculator


def new_engine(
    config: SpeculativeConfig | None,
    target: CausalLM,
    speculator: Speculator | None,
    **options: Any,
) -> Engine:
    """Makes the engine of a configuration; whatever an engine reads of one is read here.

    Args:
        config: The settled one, or None for plain decoding.
        target: The model whose law is sampled.
        speculator: Made from the configuration; None to decode plainly under its rule.
        options: What an engine takes and no configuration says: size, `impl`, `trace` and so on.
    """
    if config is None:
        return Engine(target, speculator, **options)
    schedule = None
    if config.adaptive:
        assert config.adaptive_cost_ratio is not None
        schedule = DraftSchedule(config.num_speculative_tokens, config.adaptive_cost_ratio)
    return Engine(
        target,
        speculator,
        rule=config.rule,
        process_draft_logits=config.process_draft_logits,
        schedule=schedule,
        **options,
    )
