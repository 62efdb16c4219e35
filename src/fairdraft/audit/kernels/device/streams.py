"""The stream check of a wide vocabulary: what draws of different purposes share, and keep.

A head holds .8 of the mass, far above a flat tail of 200,000 ids. Draws of different streams at the
same positions both meet the tail with chance .04, and then agree with chance 5e-6 a pair; draws
that share their noise agree always. Axes: N positions, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fairdraft import ops
from fairdraft.audit.device_layouts import planted
from fairdraft.audit.kernels.claims import Claim
from fairdraft.noise import Stream
from fairdraft.ops import DeviceAddress
from fairdraft.ops.triton.workspace import Workspace

__all__ = ["NUM_POSITIONS", "VOCAB_SIZE", "Streams", "check_streams", "stream_claim"]

VOCAB_SIZE, NUM_POSITIONS = 200_000, 1 << 20
_TAIL = 0.2
_CHUNK = 1 << 15
#: a share is off by so many standard errors once in 1.7e6; so many agreements of an expected .2
#: come once in 1e7
MAX_DEVIATIONS, MAX_AGREEMENTS = 5.0, 6
_COMPARED = (Stream.DRAFT, Stream.TARGET, Stream.RESIDUAL)


@dataclass(frozen=True)
class Streams:
    """What draws of DRAFT, TARGET and RESIDUAL at the same positions came to.

    Attributes:
        layout: What named them.
        num_positions: N.
        tail_shares: Of each stream.
        num_pairs: Positions at which DRAFT and the other stream both drew from the tail, for TARGET
            and RESIDUAL.
        num_agreeing: Of them with the same token.
        repeats: Whether drawing again gave the same tokens.
    """

    layout: str
    num_positions: int
    tail_shares: tuple[float, float, float]
    num_pairs: tuple[int, int]
    num_agreeing: tuple[int, int]
    repeats: bool

    @property
    def keeps_tail(self) -> bool:
        """Whether each stream draws from the tail as often as it should."""
        error = math.sqrt(_TAIL * (1 - _TAIL) / self.num_positions)
        return all(abs(s - _TAIL) < MAX_DEVIATIONS * error for s in self.tail_shares)


def check_streams(
    layout: str,
    device: torch.device,
    *,
    vocab_size: int = VOCAB_SIZE,
    num_positions: int = NUM_POSITIONS,
    key: int = 0,
) -> Streams:
    """Draws from one row at many positions, for three purposes, under a layout."""
    row = torch.zeros(vocab_size, device=device)
    row[0] = math.log((1 - _TAIL) / _TAIL * (vocab_size - 1))
    workspace = Workspace(device)

    def draw(stream: Stream, first: int) -> Tensor:
        position = torch.arange(first, min(first + _CHUNK, num_positions), device=device)
        at = DeviceAddress(stream, key, position, anchor=1, node=1)
        rows = row.expand(len(position), -1)
        return ops.sample(rows, at, impl="triton", workspace=workspace).token_ids

    firsts = range(0, num_positions, _CHUNK)
    with planted(layout):
        draws = [torch.cat([draw(stream, first) for first in firsts]) for stream in _COMPARED]
        repeats = all(
            torch.equal(draw(stream, 0), drawn[:_CHUNK])
            for stream, drawn in zip(_COMPARED, draws, strict=True)
        )
    is_tail = [drawn > 0 for drawn in draws]
    both = [is_tail[0] & other for other in is_tail[1:]]
    agree = [(draws[0] == other)[pair] for other, pair in zip(draws[1:], both, strict=True)]
    return Streams(
        layout,
        num_positions,
        tuple(float(tail.double().mean()) for tail in is_tail),  # type: ignore[arg-type]
        tuple(int(pair.sum()) for pair in both),  # type: ignore[arg-type]
        tuple(int(same.sum()) for same in agree),  # type: ignore[arg-type]
        repeats,
    )


def stream_claim(found: Streams) -> Claim:
    """The check in a sentence; the planted layout must make draft and residual one."""
    shares = ", ".join(f"{share:.4f}" for share in found.tail_shares)
    (target, residual), (with_target, with_residual) = found.num_pairs, found.num_agreeing
    is_apart = with_target <= MAX_AGREEMENTS
    if found.layout == "coupled":
        is_as_named = is_apart and with_residual == residual > 0
    else:
        is_as_named = is_apart and with_residual <= MAX_AGREEMENTS
    return Claim(
        f"200k vocabulary, {found.layout}: of {found.num_positions:,} draws the tail takes "
        f"{shares} (draft, target, residual; .2 is due); where both left the head, draft and "
        f"target agree in {with_target:,} of {target:,} and draft and residual in "
        f"{with_residual:,} of {residual:,}; drawn again, they "
        f"{'repeat' if found.repeats else 'DIFFER'}",
        found.keeps_tail and is_as_named and found.repeats,
    )
