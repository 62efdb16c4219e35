"""Lossy rules, and calls at the very bound of one, for their kernels on the CPU and on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fairdraft import ops
from fairdraft.ops import LossyRule, Synthetic, Threshold, Typical

LOSSY: dict[str, LossyRule] = {
    "typical": Typical(0.3, 0.6),
    "threshold": Threshold(0.4, 0.7),
    "synthetic": Synthetic((0.8, 0.5, 0.1)),
}


def at_the_bound(side: float, vocab_size: int = 1_100, unit: float = 1.0) -> dict[str, Any]:
    """A draft whose p is by 3e-5 of itself above (1) or below (-1) delta exp(-H), H in float64.

    `unit` is that of H in nats: another one is a fault.
    """
    row = 2 * torch.randn(vocab_size, generator=torch.Generator().manual_seed(2))
    law = torch.softmax(row.double() / 0.8, -1).numpy()
    draft = int(row.argsort(descending=True)[1])
    delta = law[draft] / np.exp((law * np.log(law)).sum() / unit) * (1 - side * 3e-5)
    return {
        "target_logits": row.expand(1, 2, -1),
        "draft_token_ids": torch.tensor([[draft]]),
        "num_draft_tokens": torch.tensor([1]),
        "draft_logits": None,
        "key": 5,
        "anchor": 6,
        "temperature": 0.8,
        "rule": Typical(1.0, float(delta)),
    }


def is_bound_kept(arithmetic: Any, device: str = "cpu", **options: Any) -> bool:
    """Whether the draft stands on one side of the bound and not on the other."""
    stands = []
    for side in (1, -1):
        call = at_the_bound(side, **options)
        moved: dict[str, Any] = {
            k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in call.items()
        }
        verdict = ops.verify_chain(**moved, impl="triton", arithmetic=arithmetic)
        stands.append(int(verdict.num_accepted_tokens))
    return stands == [1, 0]
