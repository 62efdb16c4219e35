"""Attention of one new token a row over a cache in which every row has its own length."""

from __future__ import annotations

import torch
from torch.nn import functional

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None


def reference(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, position: torch.Tensor
) -> torch.Tensor:
    """Masked attention over the whole cache.

    Args:
        query: [B, G, H, D], H query heads for each of G key heads.
        key: [B, G, L, D].
        value: [B, G, L, D].
        position: int64 [B]; row b attends slots 0 .. position[b].

    Returns:
        [B, G, H, D].
    """
    slots = torch.arange(key.shape[2], device=key.device)
    mask = (slots <= position[:, None])[:, None, None, :]
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


if triton is not None:

    @triton.jit
    def _decode(
        query, key, value, position, out, scale,
        G: tl.constexpr, H: tl.constexpr, D: tl.constexpr, L: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """One program serves one row and one key head; it reads only the slots in use."""
        pair = tl.program_id(0).to(tl.int64)
        last = tl.load(position + pair // G)
        heads = tl.arange(0, 16)
        dims = tl.arange(0, D)
        slots = tl.arange(0, BLOCK)
        head_ok = heads[:, None] < H
        at = pair * H * D + heads[:, None] * D + dims[None, :]
        q = tl.load(query + at, mask=head_ok, other=0.0)
        best = tl.full((16,), -1e30, tl.float32)
        total = tl.zeros((16,), tl.float32)
        acc = tl.zeros((16, D), tl.float32)
        for begin in range(0, last + 1, BLOCK):
            slot = begin + slots
            ok = slot <= last
            where = pair * L * D + slot[:, None] * D + dims[None, :]
            k = tl.load(key + where, mask=ok[:, None], other=0.0)
            score = tl.dot(q, tl.trans(k)) * scale
            score = tl.where(ok[None, :], score, -1e30)
            new = tl.maximum(best, tl.max(score, 1))
            weight = tl.exp(score - new[:, None])
            shrink = tl.exp(best - new)
            v = tl.load(value + where, mask=ok[:, None], other=0.0)
            acc = acc * shrink[:, None] + tl.dot(weight.to(v.dtype), v)
            total = total * shrink + tl.sum(weight, 1)
            best = new
        tl.store(out + at, (acc / total[:, None]).to(out.dtype.element_ty), mask=head_ok)


def kernel(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, position: torch.Tensor
) -> torch.Tensor:
    """The same as `reference` by a Triton kernel; all tensors contiguous."""
    batch, groups, heads, dim = query.shape
    out = torch.empty_like(query)
    _decode[(batch * groups,)](
        query, key, value, position, out, dim**-0.5,
        G=groups, H=heads, D=dim, L=key.shape[2], BLOCK=64, num_warps=4,
    )  # fmt: skip
    return out
