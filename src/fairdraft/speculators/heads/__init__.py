"""Heads: small networks that draft from hidden states of the target, and their checkpoints."""

from fairdraft.speculators.heads.cached import CachedHead
from fairdraft.speculators.heads.checkpoint import convert_head, is_head, join, load_head, save_head
from fairdraft.speculators.heads.config import Eagle3Config, default_feature_layers
from fairdraft.speculators.heads.network import Eagle3Head

__all__ = [
    "CachedHead",
    "Eagle3Config",
    "Eagle3Head",
    "convert_head",
    "default_feature_layers",
    "is_head",
    "join",
    "load_head",
    "save_head",
]
