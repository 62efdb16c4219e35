"""What programs share: fields of a row's address, tiles, statistics, and who finishes last.

Axes: B rows, V vocabulary, T tiles.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from fairdraft.noise.device import is_in_range
from fairdraft.ops.triton.arithmetic import TILE, tile_stats

_INF = tl.constexpr(float("inf"))


@triton.jit
def load_field(fields, strides, INDEX: tl.constexpr, row):
    """One field of a row's address; stride 0 is one value for all rows."""
    return tl.load(fields[INDEX] + row * strides[INDEX]).to(tl.int64)


@triton.jit
def row_address(at, row, STRIDES: tl.constexpr, ADDRESS: tl.constexpr):
    """A row's key, its counter, and whether every field was in range."""
    key = load_field(at, STRIDES, 0, row)
    position, anchor = load_field(at, STRIDES, 1, row), load_field(at, STRIDES, 2, row)
    stream = load_field(at, STRIDES, 3, row)
    node, sample = load_field(at, STRIDES, 4, row), load_field(at, STRIDES, 5, row)
    counter = ADDRESS(position, anchor, stream, node, sample)
    return key, counter, is_in_range(position, anchor, stream, node, sample)


@triton.jit
def load_tiles(row_ptr, vocab_size, chunk, TILES: tl.constexpr):
    """Consecutive tiles of a row as float32 [TILES * TILE], -inf past the vocabulary."""
    at = chunk * TILES * TILE + tl.arange(0, TILES * TILE)
    return tl.load(row_ptr + at, mask=at < vocab_size, other=-_INF).to(tl.float32)


@triton.jit
def load_masked_tiles(row_ptr, vocab_size, chunk, masked_id, TILES: tl.constexpr):
    """The same with one id at -inf; -1 masks none."""
    return without(load_tiles(row_ptr, vocab_size, chunk, TILES), chunk, masked_id, TILES)


@triton.jit
def without(x, chunk, masked_id, TILES: tl.constexpr):
    """Consecutive tiles with one id at -inf."""
    at = chunk * TILES * TILE + tl.arange(0, TILES * TILE)
    return tl.where(at == masked_id, -_INF, x)


@triton.jit
def store_stats(x, chunk, num_tiles, c, out, IS_FAST: tl.constexpr, TILES: tl.constexpr):
    """Stores the statistics of TILES tiles; `out` is a pair of pointers to rows of them."""
    top, total = tile_stats(tl.reshape(x, (TILES, TILE)), c, IS_FAST)
    tile = chunk * TILES + tl.arange(0, TILES)
    tl.store(out[0] + tile, top, mask=tile < num_tiles)
    tl.store(out[1] + tile, total, mask=tile < num_tiles)


@triton.jit
def load_stats(tile_max_ptr, tile_sum_ptr, num_tiles, MAX_TILES: tl.constexpr):
    """A row's statistics, past the first-level cache: other programs wrote them."""
    tile = tl.arange(0, MAX_TILES)
    is_tile = tile < num_tiles
    top = tl.load(tile_max_ptr + tile, mask=is_tile, other=-_INF, cache_modifier=".cg")
    total = tl.load(tile_sum_ptr + tile, mask=is_tile, other=0.0, cache_modifier=".cg")
    return top, total


@triton.jit
def wait_for_previous(HAS_PDL: tl.constexpr):
    """Waits for the kernel before, where this one may start early (programmatic launch)."""
    if HAS_PDL:
        gdc_wait()


@triton.jit
def let_next_start(HAS_PDL: tl.constexpr):
    """Lets the kernel after this one start; it waits before it reads."""
    if HAS_PDL:
        gdc_launch_dependents()


@triton.jit
def is_last(done_ptr, count):
    """Whether all other programs of a row have stored what they had; resets the counter."""
    tl.debug_barrier()
    is_last_one = tl.atomic_add(done_ptr, 1, sem="acq_rel") == count - 1
    if is_last_one:
        tl.store(done_ptr, 0)
    return is_last_one
