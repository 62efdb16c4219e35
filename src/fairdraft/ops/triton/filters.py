"""`ops.filter_logits` on device tensors: weights by kernel, order by the framework's stable sort.

Masses are integers, so the kept set is the reference's. Axes: B rows, V vocabulary.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairdraft.ops.arithmetic import FIXED_POINT
from fairdraft.ops.filters import FilterParams
from fairdraft.ops.triton.arithmetic import exp2_weight

_BLOCK = 1024


@triton.jit
def weights_kernel(
    values_ptr,  # float32 [B, V]
    row_max_ptr,  # float32 [B]
    scale_ptr,  # float32 [B]
    out_ptr,  # float32 [B, V]
    vocab_size,
    num_blocks,
    BLOCK: tl.constexpr,
):
    row = (tl.program_id(0) // num_blocks).to(tl.int64)
    at = (tl.program_id(0) % num_blocks) * BLOCK + tl.arange(0, BLOCK)
    is_token = at < vocab_size
    x = tl.load(values_ptr + row * vocab_size + at, mask=is_token, other=0.0)
    weights = exp2_weight(x - tl.load(row_max_ptr + row), tl.load(scale_ptr + row))
    tl.store(out_ptr + row * vocab_size + at, weights, mask=is_token)


def filter_on_device(logits: Tensor, params: FilterParams) -> Tensor:
    """See `ops.filter_logits`; nothing here waits for the device."""
    values = logits.float().contiguous()
    if not values.numel():
        return values
    device = values.device
    scale, top_k, top_p, min_p = (torch.from_numpy(field).to(device) for field in params)
    row_max = values.amax(-1)
    weights = _weights(values, row_max, scale)
    kept = values > -torch.inf
    ordered, order = values.sort(dim=-1, descending=True, stable=True)
    if params.top_k.any():
        last = (top_k - 1).clamp(0, values.shape[1] - 1)
        bound = ordered.gather(1, last[:, None])
        kept &= (values >= bound) | (top_k == 0)[:, None]
    if (params.top_p < 1).any():
        mass = (weights.double() * FIXED_POINT).long().masked_fill(~kept, 0)
        mass = mass.gather(1, order)
        before = (mass.cumsum(-1) - mass).double()
        is_nucleus = before < top_p[:, None] * mass.sum(-1, keepdim=True).double()
        is_nucleus = torch.empty_like(kept).scatter_(1, order, is_nucleus)
        kept &= is_nucleus | (top_p == 1)[:, None]
    if params.min_p.any():
        kept &= weights.double() >= min_p[:, None]
    is_left_alone = (scale == 0) | ~row_max.isfinite() | values.isnan().any(-1)
    return values.masked_fill(~(kept | is_left_alone[:, None]), -torch.inf)


def _weights(values: Tensor, row_max: Tensor, scale: Tensor) -> Tensor:
    count, vocab_size = values.shape
    num_blocks = triton.cdiv(vocab_size, _BLOCK)
    out = torch.empty_like(values)
    weights_kernel[(count * num_blocks,)](
        values, row_max, scale, out, vocab_size, num_blocks, BLOCK=_BLOCK, enable_fp_fusion=False
    )
    return out
