"""Draft laws in one form.

Axes: B rows, K drafts, C candidates, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from fairdraft.ops import SparseLogits

__all__ = ["dense_logits"]


def dense_logits(laws: Tensor | SparseLogits | None, vocab_size: int) -> Tensor | None:
    """Draft logits [B, K, V]; -inf where a sparse law [B, K, C] names no candidate."""
    import torch

    if laws is None or isinstance(laws, torch.Tensor):
        return laws
    ids, logits = laws.token_ids, laws.logits.to(torch.float32)
    dense = torch.full((*ids.shape[:2], vocab_size + 1), -torch.inf)
    dense.scatter_(2, torch.where(ids < 0, vocab_size, ids), logits)
    return dense[..., :-1].contiguous()
