"""What passes between `verify_chain` and its implementations: checked arrays.

Axes: B rows, K drafts, V vocabulary, C candidates of a sparse draft law, D drafts of a flat call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from fairdraft import noise
from fairdraft.ops.flat_rows import FlatRows
from fairdraft.ops.rows import PLACEHOLDER_TOKEN_ID
from fairdraft.ops.sample import Method


@dataclass(frozen=True)
class SparseLogits:
    """A draft law on C candidates: int64 token_ids [B, K, C] (-1 pads) and float logits.

    Flat calls may give both as [D, C].
    """

    token_ids: Tensor
    logits: Tensor


class ChainInputs(NamedTuple):
    """Checked NumPy inputs of the implementations; scales are log2(e) / T, 0 for greedy."""

    target: np.ndarray | FlatRows  # float32 [B, K + 1, V]
    draft: np.ndarray | FlatRows  # float32 [B, K, V], empty if every draft is a point mass
    token_ids: np.ndarray  # int64 [B, K]
    num_drafts: np.ndarray  # int64 [B], present ones
    target_scale: np.ndarray  # float32 [B]
    draft_scale: np.ndarray  # float32 [B]
    is_point_mass: np.ndarray  # bool [B]
    is_forbidden: np.ndarray  # bool [B, K]
    accept_at: noise.Address  # [B * K]
    final_at: noise.Address  # [B * (K + 1)]
    method: Method = "race"

    @property
    def is_matched(self) -> np.ndarray:
        """Rows decided by sample-and-match: point masses, and greedy ones."""
        return self.is_point_mass | (self.target_scale == 0)


class ChainOutputs(NamedTuple):
    """What an implementation fills in; see `Verdict`."""

    token_ids: np.ndarray
    num_accepted: np.ndarray
    margin: np.ndarray
    error: np.ndarray
    num_broken: np.ndarray


def check_counts(num_draft_tokens: np.ndarray, depth: int) -> None:
    """Refuses numbers of drafts outside 0..K."""
    bad = [count for count in num_draft_tokens.tolist() if not 0 <= count <= depth]
    if bad:
        raise ValueError(f"num_draft_tokens = {bad[0]} is outside 0..{depth}, the drafts given")


def refuse_laws(**given: Any) -> None:
    """Refuses what only a rule that compares laws could use, under rule `common_noise`."""
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"{name} is given, and rule 'common_noise' takes no law of the drafts: they may be "
                "drawn with the target's own noise, which must not meet a ratio of laws; leave it "
                "None, or use rule 'token' with drafts of their own noise"
            )


def check_forbidden(forbidden: Any, shape: tuple[int, ...]) -> None:
    """Refuses marks that are not one a draft."""
    if tuple(forbidden.shape) != tuple(shape):
        raise ValueError(f"forbidden has shape {tuple(forbidden.shape)}, not {tuple(shape)}")


def check_candidates(ids: tuple[int, ...], logits: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """Refuses candidates of a sparse draft law whose shapes do not fit rows [..., V]."""
    if ids != logits or ids[:-1] != shape[:-1]:
        raise ValueError(
            f"draft_logits has candidates of shape {tuple(ids)} and logits of shape "
            f"{tuple(logits)}; both must be {(*shape[:-1], 'C')}"
        )


def is_foreign(ids: Any, vocab_size: int) -> Any:
    """Marks candidates, an array or a tensor, that are neither ids nor -1, which pads."""
    return (ids >= vocab_size) | (ids < PLACEHOLDER_TOKEN_ID)


def is_repeated(ordered: Any) -> Any:
    """Marks [..., C - 1] where candidates in order of their ids [..., C] name the one before."""
    return (ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)


def block_depth(draft_logits: Any) -> int | None:
    """K of a draft law laid out as [B, K, V] or [S, K, V]; None if it is flat or absent."""
    law = draft_logits.token_ids if isinstance(draft_logits, SparseLogits) else draft_logits
    return law.shape[1] if isinstance(law, Tensor) and law.dim() == 3 else None


def check_slotted(draft_logits: Any) -> None:
    """Refuses slots of a law that has none."""
    if isinstance(draft_logits, SparseLogits):
        raise ValueError("idx_mapping is for dense draft_logits; index the candidates before")
