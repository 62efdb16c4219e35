"""Filtered draws from few candidates: what can be kept is gathered, ranked in pairs, and raced.

Every step is exact: the k-th largest maximum of a row's tiles bounds the k-th largest logit from
below, ranks and masses are integers. A row whose candidates do not fit is told so.
Axes: N places for candidates, G groups of GROUP ids.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false
# pyright: reportAssignmentType=false

from __future__ import annotations

import triton
import triton.language as tl

from fairdraft.noise.device import TILE_LEVEL, TOKEN_LEVEL, exponentials_at
from fairdraft.ops.triton.arithmetic import TILE, exact_parts, exp2_weight, sum_of_parts
from fairdraft.ops.triton.keys import EXCLUDED_KEY, key_value, mass_of, ordered_key
from fairdraft.ops.triton.race import scores
from fairdraft.ops.triton.reading import load_stats

#: ids whose maximum is kept, so that few are read again; a quarter of a tile
GROUP = tl.constexpr(128)
GROUPS = tl.constexpr(TILE.value // GROUP.value)
#: pairs of candidates that a program compares at once
PAIRS = tl.constexpr(1024)
#: below the binary logarithm of min_p by more than any rounding of a weight
_SLACK = tl.constexpr(0.01)
_ROUNDING = tl.constexpr(2.0**-21)
_INF = tl.constexpr(float("inf"))
_NO_TOKEN = tl.constexpr(0x7FFFFFFF)
_LOW_BITS = tl.constexpr(0xFFFFFFFF)
#: orders before and behind those of all tokens
_FIRST, _LAST = tl.constexpr(2**63 - 1), tl.constexpr(EXCLUDED_KEY.value << 32)


@triton.jit
def coarse_bound(keys, k, COUNT: tl.constexpr):
    """The largest multiple of 2^16 that at least k of COUNT keys reach; below all if too few."""
    # three counts share an integer, so that a round of one sum decides two bits
    BITS: tl.constexpr = 10 if COUNT <= 512 else 20
    FIELD: tl.constexpr = tl.int32 if COUNT <= 512 else tl.int64
    MASK: tl.constexpr = (1 << BITS) - 1
    coarse = keys >> 16
    bound = tl.full([], -0x8000, tl.int32)
    for step in range(8):
        unit = 0x4000 >> (2 * step)
        one = (coarse >= bound + unit).to(FIELD)
        two = (coarse >= bound + 2 * unit).to(FIELD)
        three = (coarse >= bound + 3 * unit).to(FIELD)
        counts = tl.sum(one + (two << BITS) + (three << (2 * BITS)), 0)
        digit = ((counts & MASK) >= k).to(tl.int32)
        digit += (((counts >> BITS) & MASK) >= k).to(tl.int32)
        digit += ((counts >> (2 * BITS)) >= k).to(tl.int32)
        bound += digit * unit
    return bound << 16


@triton.jit
def min_p_bound(row_max, c, min_p):
    """A key that every token of at least min_p times the largest weight reaches."""
    distance = (tl.log2(min_p.to(tl.float32)) - _SLACK) / c
    bound = row_max + distance - (tl.abs(row_max) - distance) * _ROUNDING
    return ordered_key(bound)


@triton.jit
def order_of(x, token):
    """int64 that falls from the largest logit to the smallest, and by id where logits tie."""
    return (ordered_key(x).to(tl.int64) << 32) | (_NO_TOKEN - token)


@triton.jit
def gather(row_ptr, vocab_size, keys, bound, places, N: tl.constexpr, STEP: tl.constexpr):
    """Stores the tokens that reach the bound; returns how many, more than N if they do not fit.

    Args:
        keys: int32 [G] of the maxima of the row's groups.
        places: Pointers to N groups, and to N candidates as `order_of` has them.
    """
    hits = ((keys >= bound) & (keys > EXCLUDED_KEY)).to(tl.int32)
    num_groups = tl.sum(hits, 0)
    count = tl.full([], 0, tl.int32)
    if num_groups <= N:
        every = tl.arange(0, keys.shape[0])
        tl.store(places[0] + tl.cumsum(hits, 0) - hits, every, mask=hits > 0)
        tl.debug_barrier()
        for start in range(0, num_groups, STEP):
            listed = start + tl.arange(0, STEP)
            group = tl.load(places[0] + listed, mask=listed < num_groups, other=0)
            token = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
            is_read = (listed[:, None] < num_groups) & (token < vocab_size)
            x = tl.load(row_ptr + token, mask=is_read, other=-_INF).to(tl.float32)
            own = ordered_key(x)
            found = tl.reshape((own >= bound) & (own > EXCLUDED_KEY), (STEP * GROUP,))
            order = tl.reshape(order_of(x, token), (STEP * GROUP,))
            place = count + tl.cumsum(found.to(tl.int32), 0) - found.to(tl.int32)
            tl.store(places[1] + place, order, mask=found & (place < N))
            count += tl.sum(found.to(tl.int32), 0)
        tl.debug_barrier()
    else:
        count = tl.full([], N + 1, tl.int32)
    return count


@triton.jit
def load_candidates(places, start, count, COUNT: tl.constexpr):
    """COUNT gathered candidates: order, logit and id; past the end -inf and no id of any row."""
    at = start + tl.arange(0, COUNT)
    order = tl.load(places[1] + at, mask=at < count, other=_LAST)
    token = _NO_TOKEN - (order & _LOW_BITS).to(tl.int32)
    return order, key_value((order >> 32).to(tl.int32)), token


@triton.jit
def load_tops(maxima_ptr, token):
    """The largest logit of each candidate's tile, from the maxima of its groups."""
    group = (token // TILE)[:, None] * GROUPS + tl.arange(0, GROUPS)[None, :]
    is_read = token[:, None] < _NO_TOKEN
    return tl.max(tl.load(maxima_ptr + group, mask=is_read, other=-_INF), 1)


@triton.jit
def rank(places, count, order, row_max, c):
    """How many candidates are larger than each, and the mass of those that come before it."""
    N: tl.constexpr = order.shape[0]
    J: tl.constexpr = PAIRS // N
    larger, before = tl.zeros([J, N], tl.int32), tl.zeros([J, N], tl.int64)
    key = (order >> 32).to(tl.int32)
    for start in range(0, count, J):
        other, value, _id = load_candidates(places, start, count, J)
        mass = mass_of(exp2_weight(value - row_max, c))
        larger += ((other >> 32).to(tl.int32)[:, None] > key[None, :]).to(tl.int32)
        before += tl.where(other[:, None] > order[None, :], mass[:, None], 0)
    return tl.sum(larger, 0), tl.sum(before, 0)


@triton.jit
def select(places, count, candidates, row_max, c, filters, total):
    """Which candidates stay, the last of them but for min-p, and whether no other token stays.

    Args:
        candidates: Order, logit, id and largest logit of the tile of each.
        filters: top_k (0 is off), top_p and min_p.
        total: Mass of the row, used where top-p comes without top-k.
    """
    order, value, token, top = candidates
    top_k, top_p, min_p = filters
    weights = exp2_weight(value - row_max, c)
    larger, before = rank(places, count, order, row_max, c)
    is_kept = (token < _NO_TOKEN) & (larger < tl.where(top_k > 0, top_k, order.shape[0]))
    gathered = tl.sum(tl.where(is_kept, mass_of(weights), 0), 0)
    is_part = (top_k == 0) & (top_p < 1.0)
    limit = top_p * tl.where(is_part, total, gathered).to(tl.float64)
    is_certain = (is_part == 0) | (gathered.to(tl.float64) >= limit)
    limit = tl.where(top_p < 1.0, limit, _INF)
    is_kept &= before.to(tl.float64) < limit
    # what stays is the first in order, so its last marks the end
    last = tl.min(tl.where(is_kept, order, _FIRST), 0)
    is_kept &= weights.to(tl.float64) >= min_p
    # a tile's largest has to stay if any does; weights are rounded, and could differ here
    is_lost = is_kept & (exp2_weight(top - row_max, c).to(tl.float64) < min_p)
    is_certain &= tl.max(is_lost.to(tl.int32), 0) == 0
    return is_kept, last, is_certain


@triton.jit
def tile_sums(places, count, maxima_ptr, tile, last, row_max, c, min_p):
    """Exact sums of the weights that stay in each candidate's tile."""
    N: tl.constexpr = tile.shape[0]
    J: tl.constexpr = PAIRS // N
    high_sum, low_sum = tl.zeros([J, N], tl.int32), tl.zeros([J, N], tl.int32)
    for start in range(0, count, J):
        order, value, token = load_candidates(places, start, count, J)
        stays = (order >= last) & (exp2_weight(value - row_max, c).to(tl.float64) >= min_p)
        weights = exp2_weight(value - load_tops(maxima_ptr, token), c)
        high, low = exact_parts(tl.where(stays, weights, 0.0))
        is_same = (token // TILE)[:, None] == tile[None, :]
        high_sum += tl.where(is_same, high[:, None], 0)
        low_sum += tl.where(is_same, low[:, None], 0)
    return sum_of_parts(tl.sum(high_sum, 0), tl.sum(low_sum, 0))


@triton.jit
def race_candidates(candidates, is_kept, sums, row_max, c, key, counter):
    """The two-level race of what stays, given the sums of its tiles: id and margin."""
    _, value, token, top = candidates
    tile = token // TILE
    weights = tl.where(is_kept, sums * exp2_weight(top - row_max, c), 0.0)
    entrants = scores(exponentials_at(key, counter, tile, TILE_LEVEL), weights)
    best = tl.min(entrants, 0)
    winner = tl.min(tl.where(entrants == best, tile, _NO_TOKEN), 0)
    second = tl.min(tl.where(tile == winner, _INF, entrants), 0)
    tile_margin = second.to(tl.float64) / best.to(tl.float64) - 1.0
    weights = tl.where(is_kept & (tile == winner), exp2_weight(value - top, c), 0.0)
    entrants = scores(exponentials_at(key, counter, token, TOKEN_LEVEL), weights)
    best = tl.min(entrants, 0)
    chosen = tl.min(tl.where(entrants == best, token, _NO_TOKEN), 0)
    second = tl.min(tl.where(token == chosen, _INF, entrants), 0)
    margin = second.to(tl.float64) / best.to(tl.float64) - 1.0
    return chosen, tl.minimum(tile_margin, margin)


@triton.jit
def store_tiles(token, top, is_kept, sums, out, num_tiles, MAX_TILES: tl.constexpr):
    """Stores the statistics of a filtered row's tiles, and reads them again."""
    lane = tl.arange(0, MAX_TILES)
    tl.store(out[0] + lane, tl.full([MAX_TILES], -_INF, tl.float32), mask=lane < num_tiles)
    tl.store(out[1] + lane, tl.zeros([MAX_TILES], tl.float32), mask=lane < num_tiles)
    tl.debug_barrier()
    tl.store(out[0] + token // TILE, top, mask=is_kept)
    tl.store(out[1] + token // TILE, sums, mask=is_kept)
    tl.debug_barrier()
    return load_stats(out[0], out[1], num_tiles, MAX_TILES)
