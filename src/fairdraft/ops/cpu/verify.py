"""`ops.verify_chain` on the CPU: numba twin of `ops/chain.py`, same tokens.

Each row of logits is scanned once for its statistics, rows past the first rejection not at all.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fairdraft.noise.jit import accept_uniform, philox4x32
from fairdraft.ops.chain_inputs import ChainInputs, ChainOutputs
from fairdraft.ops.cpu import row as rows
from fairdraft.ops.cpu.arithmetic import TILE
from fairdraft.ops.cpu.kernel import kernel
from fairdraft.ops.cpu.residual import draw_replacement, fill_residual, largest_residual
from fairdraft.ops.flat_rows import as_flat
from fairdraft.ops.rows import RowError

_MINUS_INF = np.float32(-np.inf)
_DRAFT_ERROR = int(RowError.DRAFT)


def verify_cpu(inputs: ChainInputs, outputs: ChainOutputs) -> None:
    """Walks every row of the batch; see `chain.verify_reference`."""
    _verify(*arrays_of(inputs), *noise_of(inputs), tuple(outputs))


def decision_weights_cpu(inputs: ChainInputs, accept: np.ndarray, law: np.ndarray) -> None:
    """Fills in the decision weights; see `chain.decision_weights_reference`."""
    _decide(*arrays_of(inputs), accept, law)


def arrays_of(inputs: ChainInputs) -> tuple[tuple[np.ndarray, ...], ...]:
    """What every walk reads: the target's rows, the drafts' rows, and the drafts."""
    return (
        (*mask_forbidden(inputs), inputs.target_scale),
        (*draft_rows(inputs), inputs.draft_scale),
        (inputs.token_ids, inputs.num_drafts, inputs.is_matched, inputs.is_forbidden),
    )


def noise_of(inputs: ChainInputs) -> tuple[tuple[np.ndarray, ...], bool]:
    """The addresses of a walk's draws, and whether a race has a number for every token."""
    accept_at, final_at = inputs.accept_at, inputs.final_at
    named = (accept_at.key, accept_at.counter, final_at.key, final_at.counter)
    return named, inputs.method == "gumbel"


def mask_forbidden(inputs: ChainInputs) -> tuple[np.ndarray, np.ndarray]:
    """The target's rows [N, V] with forbidden drafts at -inf, and the first of each request.

    A copy only where there are any.
    """
    target, starts = as_flat(inputs.target)
    if not np.count_nonzero(inputs.is_forbidden):
        return target, starts
    is_masked = inputs.is_forbidden & (inputs.token_ids >= 0)
    is_masked &= inputs.token_ids < target.shape[1]
    is_masked &= np.arange(inputs.token_ids.shape[1]) < inputs.num_drafts[:, None]
    if not is_masked.any():
        return target, starts
    target = target.copy()
    b, r = np.nonzero(is_masked)
    target[starts[b] + r, inputs.token_ids[b, r]] = _MINUS_INF
    return target, starts


def draft_rows(inputs: ChainInputs) -> tuple[np.ndarray, np.ndarray]:
    """The drafts' rows [N, V], and the first of each request; no rows if all are point masses."""
    draft, starts = as_flat(inputs.draft)
    return draft, starts if len(draft) else np.zeros(len(inputs.num_drafts), np.int64)


@njit
def workspace(vocab_size, is_flat):
    """Scratch of a walk: tiles of p, of q and of the residual, exponents, values, race."""
    num_tiles = (vocab_size + TILE - 1) // TILE
    tiles = np.empty((8, num_tiles), np.float32)
    return (
        (tiles[0], tiles[1], tiles[2]),
        (tiles[3], tiles[4], tiles[5]),
        (tiles[6], tiles[7]),
        np.empty(num_tiles, np.int64),
        np.empty(TILE, np.float64),
        np.empty((2, max(vocab_size if is_flat else num_tiles, TILE)), np.float32),
    )


@kernel
def _verify(targets, proposals, drafts, at, is_flat, outputs):
    target, target_starts, target_scale = targets
    draft, draft_starts, draft_scale = proposals
    draft_ids, num_drafts, is_matched, is_forbidden = drafts
    accept_key, accept_counter, final_key, final_counter = at
    token_ids, num_accepted, margin, error, num_broken = outputs
    count, num_rows = token_ids.shape
    work = workspace(target.shape[1], is_flat)
    for b in range(count):
        p_rows, q_rows = target[target_starts[b] :], draft[draft_starts[b] :]
        final = slice(b * num_rows, (b + 1) * num_rows)
        accept = slice(b * (num_rows - 1), (b + 1) * (num_rows - 1))
        if is_matched[b]:
            num_accepted[b], error[b] = match(
                (p_rows, target_scale[b]),
                (draft_ids[b], num_drafts[b]),
                (final_key[final], final_counter[final]),
                is_flat,
                work,
                (token_ids[b], margin[b]),
            )
        else:
            num_accepted[b], error[b], num_broken[b] = _ratio(
                (p_rows, target_scale[b], q_rows, draft_scale[b]),
                (draft_ids[b], num_drafts[b], is_forbidden[b]),
                (accept_key[accept], accept_counter[accept]),
                (final_key[final], final_counter[final]),
                is_flat,
                work,
                (token_ids[b], margin[b]),
            )


@njit
def match(logits, drafts, final_at, is_flat, work, out):
    """Sample-and-match for greedy rows and point masses: accepted count and error."""
    target, c = logits
    draft_ids, num_drafts = drafts
    tiles, scratch = work[0], work[5]
    token_ids, margin = out
    for r in range(num_drafts + 1):
        law, error = rows.scan(target[r], c, tiles)
        if error != 0:
            return r, error
        if c == 0:
            token_ids[r], margin[r] = rows.greedy(target[r])
        else:
            token_ids[r], margin[r] = rows.draw(
                law, is_flat, scratch, final_at[0][r], final_at[1][r]
            )
        if r == num_drafts or token_ids[r] != draft_ids[r]:
            return r, 0
    return num_drafts, 0


@njit
def _ratio(logits, drafts, accept_at, final_at, is_flat, work, out):
    """The ratio rule: accepted count, error, and how many drafts had q = 0."""
    target, target_scale, draft, draft_scale = logits
    draft_ids, num_drafts, is_forbidden = drafts
    p_tiles, q_tiles, scratch = work[0], work[1], work[5]
    token_ids, margin = out
    num_broken = 0
    for r in range(num_drafts + 1):
        p_law, error = rows.scan(target[r], target_scale, p_tiles)
        if error != 0:
            return r, error, num_broken
        key, counter = final_at[0][r], final_at[1][r]
        if r == num_drafts:
            token_ids[r], margin[r] = rows.draw(p_law, is_flat, scratch, key, counter)
            return r, 0, num_broken
        q_law, error = rows.scan(draft[r], draft_scale, q_tiles)
        if error != 0:
            return r, _DRAFT_ERROR, num_broken
        p_x = 0.0 if is_forbidden[r] else rows.probability(p_law, draft_ids[r])
        q_x = rows.probability(q_law, draft_ids[r])
        num_broken += q_x == 0
        u = accept_number(accept_at[0][r], accept_at[1][r])
        if p_x > 0 and q_x > 0 and (p_x >= q_x or u * q_x < p_x):
            token_ids[r], margin[r] = draft_ids[r], p_x / (u * q_x) - 1.0
            continue
        token, lead = draw_replacement(p_law, q_law, 1.0, is_flat, work, key, counter)
        if p_x > 0:
            lead = min(lead, u * q_x / p_x - 1.0)
        token_ids[r], margin[r] = token, lead
        return r, 0, num_broken
    return num_drafts, 0, num_broken


@njit
def accept_number(key, counter):
    """The uniform of the acceptance test at an address."""
    high, low, _, _ = philox4x32(counter[0], counter[1], counter[2], counter[3], key)
    return accept_uniform(high, low)


@kernel
def _decide(targets, proposals, drafts, accept, next_law):
    target, target_starts, target_scale = targets
    draft, draft_starts, draft_scale = proposals
    draft_ids, num_drafts, is_matched, is_forbidden = drafts
    work = workspace(target.shape[1], False)
    for b in range(len(num_drafts)):
        p_rows, q_rows = target[target_starts[b] :], draft[draft_starts[b] :]
        for r in range(num_drafts[b] + 1):
            out = next_law[b, r]
            p_law, error = rows.scan(p_rows[r], target_scale[b], work[0])
            if error != 0:
                out[:] = np.nan
                continue
            fill_law(p_law, out)
            if r == num_drafts[b]:
                out /= out.sum()
                continue
            x = draft_ids[b, r]
            p_x = out[x] if 0 <= x < len(out) and not is_forbidden[b, r] else 0.0
            if is_matched[b]:
                accept[b, r] = p_x
                if p_x > 0:
                    out[x] = 0.0
                    if not out.any():
                        out[x] = p_x
            else:
                q_law, _ = rows.scan(q_rows[r], draft_scale[b], work[1])
                q_x = rows.probability(q_law, x)
                if p_x > 0 and q_x > 0:
                    accept[b, r] = 1.0 if p_x >= q_x else p_x / q_x
                fill_residual_law(p_law, q_law, 1.0, work[4], out)
            out /= out.sum()


@njit
def fill_law(law, out):
    """Writes a row's law."""
    row, c, _, _ = law
    if c == 0:
        out[:] = 0.0
        out[rows.greedy(row)[0]] = 1.0
        return
    for j in range(len(row)):
        out[j] = rows.probability(law, j)


@njit
def fill_residual_law(p_law, q_law, rho, values, out):
    """Writes the residual's weights over p's, unless they are all zero."""
    if largest_residual(p_law, q_law, rho, values) == 0.0:
        return
    for t in range(len(p_law[2][0])):
        count, _ = fill_residual(p_law, q_law, rho, t, values)
        out[t * TILE : t * TILE + count] = values[:count]
