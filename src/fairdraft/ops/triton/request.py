"""What the verification kernels share: a request's drafts, rows, addresses and parameters.

Axes: B requests, K drafts, R = K + 1 rows, V vocabulary.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from fairdraft.noise import Stream
from fairdraft.noise.device import accept_uniform, is_in_range
from fairdraft.ops.triton.arithmetic import temperature_scale
from fairdraft.ops.triton.reading import load_field

# what a row came to; those after ACCEPTED end the walk, ERROR plus a RowError is an error
ACCEPTED, DRAWN, REJECTED, ERROR = (tl.constexpr(i) for i in range(4))
_TARGET, _ACCEPT = tl.constexpr(int(Stream.TARGET)), tl.constexpr(int(Stream.ACCEPT))
_RESIDUAL, _BONUS = tl.constexpr(int(Stream.RESIDUAL)), tl.constexpr(int(Stream.BONUS))
_INF = tl.constexpr(float("inf"))


@triton.jit
def request_span(drafts, limits, b, K: tl.constexpr, ROWS: tl.constexpr, MODE: tl.constexpr):
    """Where a request is, how many drafts it has, and whether its numbers are possible.

    Its places are its first draft, its first row of the target and of the drafts' laws, in units of
    their first strides, and its first row of the drafts' statistics. An id of -1 ends the drafts; a
    request whose numbers are impossible has none, and reads where it may.
    """
    row = tl.arange(0, ROWS)
    start, p_first = b * K, b
    is_draft = row < K
    if MODE[5]:
        p_first, start, given, is_possible = flat_span(drafts[4], limits, b, K, MODE)
        is_draft = row < given
    else:
        given = tl.load(drafts[1] + b).to(tl.int64)
        is_possible = (given >= 0) & (given <= K)
        given = tl.where(is_possible, given, 0)
    q_first, q_place = b, b * K
    if MODE[6]:
        q_first, q_place = start, start
    if MODE[7]:
        slot = tl.load(drafts[5] + b).to(tl.int64)
        is_slot = (slot >= 0) & (slot < limits[1])
        is_possible &= is_slot
        q_first = tl.where(is_slot, slot, 0)
        given = tl.where(is_slot, given, 0)
    ids = tl.load(drafts[0] + start + row, mask=is_draft, other=-1).to(tl.int64)
    absent = tl.min(tl.where(ids == -1, row, ROWS), 0).to(tl.int64)
    return (start, p_first, q_first, q_place), tl.minimum(given, absent), is_possible


@triton.jit
def flat_span(offsets_ptr, limits, b, K: tl.constexpr, MODE: tl.constexpr):
    """First row and first draft of a request, and its number of drafts, from offsets.

    Those of a request that is no run of 1..K + 1 rows inside the batch are 0, and it is impossible.
    """
    num_rows, _, num_requests = limits
    if MODE[5] % 2 == 1:
        # cu_num_logits [B + 1]
        first = tl.load(offsets_ptr + b).to(tl.int64)
        end = tl.load(offsets_ptr + b + 1).to(tl.int64)
    else:
        # cu_num_draft_tokens [B]: every request before has a bonus row as well
        before = tl.load(offsets_ptr + b - 1, mask=b > 0, other=0).to(tl.int64)
        first = before + b
        end = tl.load(offsets_ptr + b).to(tl.int64) + b + 1
    given = end - first - 1
    # both in 0..N first: a difference of anything else may wrap into what looks right
    is_possible = (first >= 0) & (end >= 0) & (end <= num_rows) & (given >= 0) & (given <= K)
    is_possible &= (b > 0) | (first == 0)
    if MODE[5] > 2:
        # drafts are laid out as rows, after an entry that is not theirs
        start = first + 1
    else:
        start = first - b
        is_possible &= (start >= 0) & (start + given <= num_rows - num_requests)
    first = tl.where(is_possible, first, 0)
    return first, tl.where(is_possible, start, 0), tl.where(is_possible, given, 0), is_possible


@triton.jit
def row_places(target, draft, first, b, r):
    """Pointers to row r of the target and to the draft's row, and that of the latter's statistics.

    `first` is as `request_span` gives it.
    """
    p_row = target[0] + first[1] * target[1] + r * target[2]
    q_row = draft[0] + first[2] * draft[1] + r * draft[2]
    return p_row, q_row, first[3] + r


@triton.jit
def masked_token(drafts, first, r, n, vocab_size, HAS_FORBIDDEN: tl.constexpr):
    """Draft r + 1, whether it is forbidden, and the id that is masked in its row (-1: none)."""
    x = tl.load(drafts[0] + first[0] + r, mask=r < n, other=-1).to(tl.int64)
    is_forbidden = (x < 0) | (x >= vocab_size)
    masked_id = tl.full([], -1, tl.int64)
    if HAS_FORBIDDEN:
        is_forbidden |= tl.load(drafts[3] + first[0] + r, mask=r < n, other=0) != 0
        masked_id = tl.where(is_forbidden, x, -1)
    return x, is_forbidden, masked_id


@triton.jit
def request_fields(at, b, STRIDES: tl.constexpr):
    """A request's key, anchor and sample."""
    return (
        load_field(at, STRIDES, 0, b),
        load_field(at, STRIDES, 1, b),
        load_field(at, STRIDES, 2, b),
    )


@triton.jit
def final_address(fields, r, n, ADDRESS: tl.constexpr, IS_COMMON: tl.constexpr):
    """Key and counter of the token after row r, and whether the fields are in range."""
    # `common_noise` has the address of plain decoding at every row
    stream = tl.full([], _TARGET, tl.int64) if IS_COMMON else last_stream(r < n, n > 0)
    return token_address(fields, r, r, stream, ADDRESS)


@triton.jit
def last_stream(has_child, has_drafts):
    """What the token after a row counts for, by whether a draft follows it, or any is there."""
    return tl.where(has_child, _RESIDUAL, tl.where(has_drafts, _BONUS, _TARGET)).to(tl.int64)


@triton.jit
def token_address(fields, depth, node, stream, ADDRESS: tl.constexpr):
    """Key and counter of the token after a node, and whether the fields are in range."""
    key, anchor, sample = fields
    is_plain = stream == _TARGET
    shown = tl.where(is_plain, 0, anchor)
    shown_node = tl.where(is_plain, 0, node).to(tl.int64)
    counter = ADDRESS(anchor + depth, shown, stream, shown_node, sample)
    return key, counter, is_in_range(anchor + depth, anchor, stream, shown_node, sample)


@triton.jit
def accept_number(fields, r, ADDRESS: tl.constexpr):
    """The uniform that tests draft r + 1 of a chain."""
    return node_number(fields, r, r + 1, ADDRESS)


@triton.jit
def node_number(fields, depth, c, ADDRESS: tl.constexpr):
    """The uniform that tests node c, a child of a node at this depth."""
    key, anchor, sample = fields
    stream = tl.full([], _ACCEPT, tl.int64)
    return accept_uniform(key, ADDRESS(anchor + depth, anchor, stream, c.to(tl.int64), sample))


@triton.jit
def scales(temperatures, drafts, b, STRIDES: tl.constexpr, HAS_DRAFT: tl.constexpr):
    """c of target and draft, and whether the request is decided by sample-and-match."""
    c = temperature_scale(tl.load(temperatures[0] + b * STRIDES[3]))
    draft_c = c
    is_matched = c == 0.0
    if HAS_DRAFT:
        draft_c = temperature_scale(tl.load(temperatures[1] + b * STRIDES[4]))
        is_point_mass = tl.load(drafts[2] + b * STRIDES[5]) != 0
        is_matched = is_matched | is_point_mass | (draft_c == 0.0)
    else:
        is_matched = b >= 0
    return c, draft_c, is_matched


@triton.jit
def note_end(ended_ptr, b, r, ROWS: tl.constexpr):
    """Lets the rows after r know that the walk ends there: it holds the most of ROWS - r."""
    tl.atomic_max(ended_ptr + b, (ROWS - r).to(tl.int32), sem="relaxed")


@triton.jit
def ends_before(ended_ptr, b, r, ROWS: tl.constexpr):
    """Whether an earlier row of the request is already known to end the walk."""
    return last_known(ended_ptr + b) > ROWS - r


@triton.jit
def last_known(ptr):
    """A number that other programs may be changing, the same for every warp of this one."""
    # a plain load is made by each warp for itself, and warps that disagree part at barriers
    return tl.atomic_or(ptr, 0, sem="relaxed")


@triton.jit
def draft_test(p_x, q_x, u):
    """Twin of `rules.is_accepted`, and the test's margin."""
    is_positive = (p_x > 0.0) & (q_x > 0.0)
    is_accepted = is_positive & ((p_x >= q_x) | (u * q_x < p_x))
    safe = tl.where(is_positive, u * q_x, 1.0)
    passed = p_x / safe - 1.0
    failed = tl.where(p_x > 0.0, u * q_x / tl.where(p_x > 0.0, p_x, 1.0) - 1.0, _INF)
    return is_accepted, tl.where(is_accepted, passed, failed)
