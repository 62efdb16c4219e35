"""Ops over logits whose random numbers have addresses; loads torch and numpy, nothing heavier."""

# importing them registers `torch.ops.fairdraft`
from fairdraft.ops import custom, custom_tree
from fairdraft.ops.device_address import DeviceAddress
from fairdraft.ops.dispatch import Arithmetic, Impl
from fairdraft.ops.filters import filter_logits
from fairdraft.ops.logprobs import Logprobs, logprobs
from fairdraft.ops.lossy import LossyRule, Synthetic, Threshold, Typical
from fairdraft.ops.rows import PLACEHOLDER_TOKEN_ID, RowError
from fairdraft.ops.sample import Sampled, TileStats, sample
from fairdraft.ops.verdict import DecisionWeights, TreeVerdict, Verdict
from fairdraft.ops.verify import SparseLogits, verify_chain
from fairdraft.ops.verify_tree import verify_tree

__all__ = [
    "PLACEHOLDER_TOKEN_ID",
    "Arithmetic",
    "DecisionWeights",
    "DeviceAddress",
    "Impl",
    "Logprobs",
    "LossyRule",
    "RowError",
    "Sampled",
    "SparseLogits",
    "Synthetic",
    "Threshold",
    "TileStats",
    "TreeVerdict",
    "Typical",
    "Verdict",
    "custom",
    "custom_tree",
    "filter_logits",
    "logprobs",
    "sample",
    "verify_chain",
    "verify_tree",
]
