"""What the kernels are held to: `portable` equals the reference, `fast` does off near ties."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairdraft import ops
from fairdraft.noise import Address
from fairdraft.ops import DeviceAddress, Sampled, Verdict

#: decisions with a smaller margin may differ in `fast` arithmetic
NEAR_TIE = 4e-6
SAMPLED = ("token_ids", "margin", "error")
VERDICT = (
    "token_ids",
    "margin",
    "num_accepted_tokens",
    "num_emitted_tokens",
    "last_stream",
    "error",
)


def assert_equal(got: Any, expected: Any, names: tuple[str, ...]) -> None:
    for name in names:
        have, want = getattr(got, name).cpu(), getattr(expected, name)
        assert torch.equal(have, want), f"{name}: {have.tolist()} is not {want.tolist()}"


def assert_sampled_alike(
    logits: Tensor, at: Address | DeviceAddress, has_fast: bool = False, **options: Any
) -> tuple[Sampled, Sampled]:
    """Draws from the kernels and the reference, in both arithmetics if asked; `portable` first."""
    own = {name: options.pop(name, None) for name in ("workspace",)}
    expected = ops.sample(logits, at, impl="reference", **options)
    got = ops.sample(logits, at, impl="triton", arithmetic="portable", **own, **options)
    assert_equal(got, expected, SAMPLED)
    if expected.stats is not None:
        assert_equal(got.stats, expected.stats, ("row_max", "row_sum"))
    if has_fast:
        fast = ops.sample(logits, at, impl="triton", arithmetic="fast", **own, **options)
        assert_near(fast, expected)
    return got, expected


def assert_near(fast: Any, expected: Any, max_ties: int = 0) -> None:
    """Equal but for at most `max_ties` rows, in which the reference decided by a near tie."""
    assert torch.equal(fast.error.cpu(), expected.error)
    token_ids, margin = fast.token_ids.cpu(), expected.margin
    if token_ids.dim() == 1:
        token_ids, wanted, margin = token_ids[:, None], expected.token_ids[:, None], margin[:, None]
    else:
        wanted = expected.token_ids
    is_other = (token_ids != wanted).any(1)
    is_tie = ((margin < NEAR_TIE) & (wanted >= 0)).any(1)
    assert not (is_other & ~is_tie).any(), torch.nonzero(is_other & ~is_tie).tolist()
    assert int(is_other.sum()) <= max_ties


def assert_verified_alike(
    call: dict[str, Any], has_fast: bool = False, **own: Any
) -> tuple[Verdict, Verdict]:
    """One call of `verify_chain` against the reference, in both arithmetics if asked."""
    expected = ops.verify_chain(**call, impl="reference")
    got = ops.verify_chain(**call, **own, impl="triton", arithmetic="portable")
    assert_equal(got, expected, VERDICT)
    assert int(torch.as_tensor(got.num_broken).sum()) == expected.num_broken
    if has_fast:
        assert_near(ops.verify_chain(**call, **own, impl="triton", arithmetic="fast"), expected)
    return got, expected


def guarded(values: Tensor, width: int = 37) -> Tensor:
    """The same rows as a slice of a wider tensor whose other columns are +inf."""
    shape = (*values.shape[:-1], values.shape[-1] + width)
    wide = torch.full(shape, float("inf"), dtype=values.dtype)
    wide[..., : values.shape[-1]] = values
    return wide[..., : values.shape[-1]]


def device_address(count: int, seed: int = 0, stream: int = 1) -> DeviceAddress:
    """Addresses whose every field is a tensor; `to_host` packs the same ones."""
    rng = np.random.default_rng(seed)

    def field(bits: int) -> Tensor:
        return torch.from_numpy(rng.integers(0, 1 << bits, count))

    key = torch.from_numpy(rng.integers(-(1 << 63), 1 << 63, count))
    streams = torch.full((count,), stream)
    return DeviceAddress(streams, key, field(32), field(32), field(16), field(16))
