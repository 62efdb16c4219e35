"""Heads: small networks that draft from hidden states of the target, and their checkpoints."""

from fairdraft.speculators.heads.cached import CachedHead, CachedNetwork
from fairdraft.speculators.heads.cached_blocks import CachedBlocks
from fairdraft.speculators.heads.checkpoint import (
    convert_head,
    join,
    kind_of_head,
    load_dflash,
    load_head,
    load_mtp,
    load_shared_kv,
    save_head,
)
from fairdraft.speculators.heads.config import (
    Dflash2Config,
    DflashConfig,
    DsparkConfig,
    Eagle3Config,
    HeadConfig,
    MtpConfig,
    SharedKvConfig,
    default_feature_layers,
)
from fairdraft.speculators.heads.dflash import DflashHead, DflashLayer
from fairdraft.speculators.heads.dflash2 import (
    BlockConvolution,
    CandidateSelector,
    Dflash2Head,
    best_ids,
)
from fairdraft.speculators.heads.dspark import DsparkHead
from fairdraft.speculators.heads.head import Head, SlotHead
from fairdraft.speculators.heads.kept import KeptOutputs
from fairdraft.speculators.heads.law import DraftLaw
from fairdraft.speculators.heads.mtp import MtpHead
from fairdraft.speculators.heads.network import Eagle3Head
from fairdraft.speculators.heads.recalling import RecallingHead
from fairdraft.speculators.heads.shared_kv import SharedKvHead
from fairdraft.speculators.heads.target_keys import full_layers, key_shape, rotations

__all__ = [
    "BlockConvolution",
    "CachedBlocks",
    "CachedHead",
    "CachedNetwork",
    "CandidateSelector",
    "Dflash2Config",
    "Dflash2Head",
    "DflashConfig",
    "DflashHead",
    "DflashLayer",
    "DraftLaw",
    "DsparkConfig",
    "DsparkHead",
    "Eagle3Config",
    "Eagle3Head",
    "Head",
    "HeadConfig",
    "KeptOutputs",
    "MtpConfig",
    "MtpHead",
    "RecallingHead",
    "SharedKvConfig",
    "SharedKvHead",
    "SlotHead",
    "best_ids",
    "convert_head",
    "default_feature_layers",
    "full_layers",
    "join",
    "key_shape",
    "kind_of_head",
    "load_dflash",
    "load_head",
    "load_mtp",
    "load_shared_kv",
    "rotations",
    "save_head",
]
