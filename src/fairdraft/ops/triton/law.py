"""Laws of rows inside Triton kernels: statistics of tiles, and what is computed from them.

A law is what `RowWeights` holds: pointers to a row's logits and tile statistics, c, the row's
maximum and its total. Axes: T tiles.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from fairdraft.ops.triton.arithmetic import TILE, exact_sum, exp2_weight, law_scale, tile_base
from fairdraft.ops.triton.reading import load_masked_tiles, load_tiles

NO_EXPONENT = tl.constexpr(-4096)
_SMALLEST_EXPONENT = tl.constexpr(-100)
_TINY = tl.constexpr(2.0**-100)
_INF = tl.constexpr(float("inf"))
_ONE_BITS = tl.constexpr(0x3FF0000000000000)


@triton.jit
def probability(logit, tile_max, c, row_max, total):
    """P of a token in float64, from its logit and its tile's largest one."""
    weight = exp2_weight(logit.to(tl.float32) - tile_base(tile_max), c)
    return weight.to(tl.float64) * law_scale(exp2_weight(tile_max - row_max, c), total)


@triton.jit
def probabilities(x, tile_max, c, row_max, total):
    """P of whole tiles x [G, TILE] in float64."""
    weights = exp2_weight(x - tile_base(tile_max)[:, None], c)
    scale = law_scale(exp2_weight(tile_max - row_max, c), total)
    return weights.to(tl.float64) * scale[:, None]


@triton.jit
def fast_probabilities(x, tile_max, c, row_max, total):
    """P of whole tiles x [G, TILE] in float32, with the hardware's 2^x."""
    weights = tl.exp2((x - tile_base(tile_max)[:, None]) * c)
    scale = law_scale(tl.exp2((tile_max - row_max) * c), total).to(tl.float32)
    return weights * scale[:, None]


@triton.jit
def tile_probabilities(x, tile_max, c, row_max, total, IS_FAST: tl.constexpr):
    """P of whole tiles x [G, TILE]: float64, or float32 if `fast`.

    float64 is a hundred times the arithmetic, and then the bound. What float32 loses is a few
    2^-23 of P, which moves the law by no more.
    """
    if IS_FAST:
        p = fast_probabilities(x, tile_max, c, row_max, total)
    else:
        p = probabilities(x, tile_max, c, row_max, total)
    return p


@triton.jit
def binary_exponent(value):
    """e with value = m 2^e and m in [1/2, 1); NO_EXPONENT for 0, -126 for less in float32."""
    if value.dtype == tl.float32:
        exponent = (value.to(tl.int32, bitcast=True) >> 23) - 126
    else:
        exponent = ((value.to(tl.int64, bitcast=True) >> 52) - 1022).to(tl.int32)
    return tl.where(value > 0.0, exponent, NO_EXPONENT)


@triton.jit
def power_of_two(exponent):
    """2^exponent in float64, for exponents of normal numbers."""
    return ((exponent.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def scaled_weights(values, exponent):
    """Twin of `arithmetic.scaled_weights` on tiles [G, TILE] with their exponents [G]."""
    if values.dtype == tl.float32:
        scale = ((127 - tl.maximum(exponent, -126)) << 23).to(tl.float32, bitcast=True)
    else:
        scale = power_of_two(-tl.maximum(exponent, -1022))
    scaled = values * scale[:, None]
    return tl.where(scaled >= _TINY, scaled, 0.0).to(tl.float32)


@triton.jit
def residual_tiles(values):
    """Exponent and scaled sum of each tile of a residual [G, TILE]; free of order, as integers."""
    exponent = binary_exponent(tl.max(values, 1))
    return exponent, exact_sum(scaled_weights(values, exponent), 1)


@triton.jit
def residual_weights(exponent, tile_sum):
    """What the race of a residual's tiles is run on, and whether there is anything."""
    top = tl.max(exponent, 0)
    distance = exponent - top
    is_kept = (exponent > NO_EXPONENT) & (distance > _SMALLEST_EXPONENT)
    scale = power_of_two(tl.maximum(distance, -1022)).to(tl.float32)
    return tl.where(is_kept, tile_sum * scale, 0.0), top > NO_EXPONENT


@triton.jit
def mass_units(values):
    """Twin of `rules.residual_mass` on float64 values in [0, 1]: int64 of unit 2^-52."""
    one = tl.full([], 1.0, tl.float64)
    return (values + one).to(tl.int64, bitcast=True) - _ONE_BITS


@triton.jit
def residual_units(values, exponent, tile_sum, IS_FAST: tl.constexpr):
    """Mass of tiles of a residual, int64 of unit 2^-52: of its values, or `fast` of their sums."""
    if IS_FAST:
        masses = tile_sum.to(tl.float64) * power_of_two(tl.maximum(exponent, -126))
        units = tl.sum(mass_units(tl.minimum(masses, 1.0)), 0)
    else:
        units = tl.sum(tl.sum(mass_units(values), 1), 0)
    return units


@triton.jit
def request_laws(p_stats, q_stats, place, q_place, num_tiles, c, draft_c, has_draft):
    """The laws of one row of target and draft: tile maxima, c, the row's maximum and total."""
    return (
        p_stats[0] + place * num_tiles,
        c,
        tl.load(p_stats[2] + place, cache_modifier=".cg"),
        tl.load(p_stats[3] + place, cache_modifier=".cg"),
        q_stats[0] + q_place * num_tiles,
        draft_c,
        tl.load(q_stats[2] + q_place, mask=has_draft, other=0.0, cache_modifier=".cg"),
        tl.load(q_stats[3] + q_place, mask=has_draft, other=1, cache_modifier=".cg"),
    )


@triton.jit
def residual_of(
    rows,
    laws,
    rho,
    chunk,
    num_tiles,
    vocab_size,
    masked_id,
    TILES: tl.constexpr,
    IS_BLOCK: tl.constexpr,
    IS_FAST: tl.constexpr,
):
    """max(rho p - q, 0) of TILES tiles [TILES, TILE] in float64, or float32 if `fast`."""
    p_row, q_row = rows
    p_tile_max, p_c, p_max, p_sum, q_tile_max, q_c, q_max, q_sum = laws
    tile = chunk * TILES + tl.arange(0, TILES)
    is_tile = tile < num_tiles
    x = load_masked_tiles(p_row, vocab_size, chunk, masked_id, TILES)
    y = load_tiles(q_row, vocab_size, chunk, TILES)
    p_top = tl.load(p_tile_max + tile, mask=is_tile, other=-_INF)
    q_top = tl.load(q_tile_max + tile, mask=is_tile, other=-_INF)
    x, y = tl.reshape(x, (TILES, TILE)), tl.reshape(y, (TILES, TILE))
    p = tile_probabilities(x, p_top, p_c, p_max, p_sum, IS_FAST)
    q = tile_probabilities(y, q_top, q_c, q_max, q_sum, IS_FAST)
    if IS_BLOCK:
        p = rho.to(p.dtype) * p
    return tl.maximum(p - q, 0.0)


@triton.jit
def store_residual(
    rows,
    laws,
    rho,
    chunk,
    sizes,
    out,
    TILES: tl.constexpr,
    IS_BLOCK: tl.constexpr,
    IS_FAST: tl.constexpr,
):
    """Stores exponents and sums of TILES tiles of a residual, and returns their mass.

    `sizes` is T, V and the id that is masked; `out` is pointers to the row's exponents and sums.
    The mass is that of rule `block`, in units of 2^-52, and 0 for others.
    """
    num_tiles, vocab_size, masked_id = sizes
    values = residual_of(
        rows, laws, rho, chunk, num_tiles, vocab_size, masked_id, TILES, IS_BLOCK, IS_FAST
    )
    exponent, tile_sum = residual_tiles(values)
    tile = chunk * TILES + tl.arange(0, TILES)
    tl.store(out[0] + tile, exponent, mask=tile < num_tiles)
    tl.store(out[1] + tile, tile_sum, mask=tile < num_tiles)
    units = tl.full([], 0, tl.int64)
    if IS_BLOCK:
        units += residual_units(values, exponent, tile_sum, IS_FAST)
    return units
