"""The flat race inside Triton kernels: a number for every token (Gumbel-max).

`fast` scores against the largest logit that a program saw and brings its best to the row's scale at
the end, so a row is read once; `portable` needs the row's maximum first. Axes: N programs a row.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from fairdraft.noise.device import TOKEN_LEVEL, exponentials, fast_exponentials
from fairdraft.ops.triton.arithmetic import exp2_weight, temperature_scale
from fairdraft.ops.triton.race import scores
from fairdraft.ops.triton.reading import is_last, load_tiles, row_address

_INF = tl.constexpr(float("inf"))


@triton.jit
def store_best(
    x, base, c, key, counter, chunk, parts, place, IS_FAST: tl.constexpr, HAS_LG2: tl.constexpr
):
    """Races a program's tokens and stores base, best, second and the winner's id."""
    COUNT: tl.constexpr = x.shape[0]
    d = x - base
    if IS_FAST:
        times = fast_exponentials(key, counter, chunk * COUNT, TOKEN_LEVEL, COUNT, HAS_LG2)
        exponent = d * c
        entrants = tl.where(exponent > -100.0, times * tl.exp2(-exponent), _INF)
    else:
        times = exponentials(key, counter, chunk * COUNT, TOKEN_LEVEL, COUNT)
        entrants = scores(times, exp2_weight(d, c))
    lane = tl.arange(0, COUNT)
    best = tl.min(entrants, 0)
    # half of what an argmin costs, with the same ties
    winner = tl.min(tl.where(entrants == best, lane, COUNT - 1), 0)
    tl.store(parts[0] + place, tl.where(best < _INF, base, -_INF))
    tl.store(parts[1] + place, best)
    tl.store(parts[2] + place, tl.min(tl.where(lane == winner, _INF, entrants), 0))
    tl.store(parts[3] + place, chunk * COUNT + winner)


@triton.jit
def pick_best(parts, start, num_chunks, row_max, c, MAX_CHUNKS: tl.constexpr):
    """The winner among a row's programs and its margin; base is -inf where nothing races."""
    chunk = tl.arange(0, MAX_CHUNKS)
    at = start + chunk
    is_there = chunk < num_chunks
    base = tl.load(parts[0] + at, mask=is_there, other=-_INF, cache_modifier=".cg")
    best = tl.load(parts[1] + at, mask=is_there, other=_INF, cache_modifier=".cg")
    second = tl.load(parts[2] + at, mask=is_there, other=_INF, cache_modifier=".cg")
    token = tl.load(parts[3] + at, mask=is_there, other=0, cache_modifier=".cg")
    scale = exp2_weight(base - row_max, c)
    best, second = scores(best, scale), scores(second, scale)
    winner = tl.argmin(best, 0)
    least = tl.min(best, 0)
    second = tl.min(tl.where(chunk == winner, second, best), 0)
    token = tl.sum(tl.where(chunk == winner, token, 0), 0)
    return token, second.to(tl.float64) / least.to(tl.float64) - 1.0


@triton.jit
def flat_kernel(
    logits_ptr,  # [B, V]
    logits_stride,
    temperature_ptr,  # [B] or [1]
    at,  # key, position, anchor, stream, node, sample: int64 [B] or [1]
    row_max_ptr,  # float32 [B]
    parts,  # base, best, second: float32 [B, N]; token: int32 [B, N]
    out,  # token_ids int64 [B], margin float64 [B], error int64 [B]; written where a row races
    done_ptr,  # int32 [B], zeros before and after
    vocab_size,
    num_chunks,
    STRIDES: tl.constexpr,
    ADDRESS: tl.constexpr,
    TILES: tl.constexpr,
    MAX_CHUNKS: tl.constexpr,
):
    row = (tl.program_id(0) // num_chunks).to(tl.int64)
    chunk = tl.program_id(0) % num_chunks
    c = temperature_scale(tl.load(temperature_ptr + row * STRIDES[6]))
    if (tl.load(out[2] + row) == 0) & (c > 0.0):
        key, counter, _ = row_address(at, row, STRIDES, ADDRESS)
        x = load_tiles(logits_ptr + row * logits_stride, vocab_size, chunk, TILES)
        row_max = tl.load(row_max_ptr + row)
        place = row * num_chunks + chunk
        store_best(x, row_max, c, key, counter, chunk, parts, place, False, False)
        if is_last(done_ptr + row, num_chunks):
            start = row * num_chunks
            token, margin = pick_best(parts, start, num_chunks, row_max, c, MAX_CHUNKS)
            tl.store(out[0] + row, token.to(tl.int64))
            tl.store(out[1] + row, margin)
