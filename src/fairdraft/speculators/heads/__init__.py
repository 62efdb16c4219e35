"""Heads: small networks that draft from hidden states of the target, and their checkpoints."""

from fairdraft.speculators.heads.cached import CachedHead
from fairdraft.speculators.heads.checkpoint import (
    convert_head,
    join,
    kind_of_head,
    load_head,
    load_mtp,
    save_head,
)
from fairdraft.speculators.heads.config import (
    Eagle3Config,
    HeadConfig,
    MtpConfig,
    default_feature_layers,
)
from fairdraft.speculators.heads.head import Head
from fairdraft.speculators.heads.kept import KeptOutputs
from fairdraft.speculators.heads.law import DraftLaw
from fairdraft.speculators.heads.mtp import MtpHead
from fairdraft.speculators.heads.network import Eagle3Head

__all__ = [
    "CachedHead",
    "DraftLaw",
    "Eagle3Config",
    "Eagle3Head",
    "Head",
    "HeadConfig",
    "KeptOutputs",
    "MtpConfig",
    "MtpHead",
    "convert_head",
    "default_feature_layers",
    "join",
    "kind_of_head",
    "load_head",
    "load_mtp",
    "save_head",
]
