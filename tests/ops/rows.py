"""Rows of logits that tests of several ops share."""

from __future__ import annotations

import numpy as np
import torch

from fairdraft import noise
from fairdraft.noise import Stream
from fairdraft.ops import Impl

SHAPES = [(0, 7), (1, 1), (3, 2), (2, 63), (3, 512), (2, 513), (2, 1025), (3, 33_001)]
IMPLS: list[Impl] = ["reference", "cpu"]


def random_logits(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32):
    """Normal logits of mixed widths with whole tiles and ranges masked."""
    rng = np.random.default_rng(seed)
    scale = rng.choice([0.5, 3.0, 30.0], size=(*shape[:-1], 1))
    x = rng.normal(size=shape) * scale
    if shape[0] and shape[-1] > 600:
        x[0, ..., 5:300] = -np.inf
        x[-1, ..., :512] = -np.inf
    return torch.from_numpy(x).to(dtype)


def addresses(count: int, seed: int = 0, stream: Stream = Stream.TARGET) -> noise.Address:
    rng = np.random.default_rng(seed)
    return noise.address(
        stream,
        key=rng.integers(0, 1 << 64, count, dtype=np.uint64),
        position=rng.integers(0, 1 << 32, count),
        anchor=rng.integers(0, 1 << 32, count),
        node=rng.integers(0, 1 << 16, count),
        sample=rng.integers(0, 1 << 16, count),
    )
