"""Padded calls of `verify_chain` laid out flat, as engines keep them."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fairdraft.ops import SparseLogits

Offsets = Literal["cu_num_logits", "cu_num_draft_tokens"]


def flattened(
    call: dict[str, Any], offsets: Offsets, *, is_shifted: bool = False, num_spare: int = 0
) -> dict[str, Any]:
    """The same requests flat; `num_spare` rows of NaN follow, as in the buffers of a graph."""
    counts = call["num_draft_tokens"].numpy()
    depth = call["draft_token_ids"].shape[1]
    is_row = torch.from_numpy(np.arange(depth + 1) <= counts[:, None])
    is_draft = torch.from_numpy(np.arange(depth) < counts[:, None])

    def entries(values: Tensor, filler: Any) -> Tensor:
        if not is_shifted:
            return spared(values[is_draft], filler)
        shape = (len(values), 1, *values.shape[2:])
        led = torch.cat([torch.full(shape, filler, dtype=values.dtype), values], 1)
        return spared(led[is_row], filler)

    def spared(values: Tensor, filler: Any) -> Tensor:
        more = torch.full((num_spare, *values.shape[1:]), filler, dtype=values.dtype)
        return torch.cat([values, more])

    flat = {name: value for name, value in call.items() if name != "num_draft_tokens"}
    flat["target_logits"] = spared(call["target_logits"][is_row], torch.nan)
    flat["draft_token_ids"] = entries(call["draft_token_ids"], 3)
    if call.get("forbidden") is not None:
        flat["forbidden"] = entries(call["forbidden"], True)
    law = call["draft_logits"]
    if isinstance(law, SparseLogits):
        flat["draft_logits"] = SparseLogits(entries(law.token_ids, -1), entries(law.logits, 0.0))
    elif law is not None:
        flat["draft_logits"] = entries(law, torch.nan)
    ends = np.cumsum(counts + (offsets == "cu_num_logits"))
    ends = np.concatenate([[0], ends]) if offsets == "cu_num_logits" else ends
    flat[offsets] = torch.from_numpy(ends.astype(np.int32))
    flat["max_spec_len"] = depth
    return flat
