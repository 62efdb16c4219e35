"""Rule `block` of `ops.verify_chain` on the CPU: numba twin of `ops/block.py`, same tokens.

Each row of logits is scanned once on the way forward; the residual's mass is computed only for the
prefixes that are tested, from the last one back to the one that stands.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fairdraft.ops.chain_inputs import ChainInputs, ChainOutputs
from fairdraft.ops.cpu import row as rows
from fairdraft.ops.cpu.arithmetic import TILE
from fairdraft.ops.cpu.kernel import kernel
from fairdraft.ops.cpu.residual import draw_replacement, residual_mass
from fairdraft.ops.cpu.verify import (
    accept_number,
    arrays_of,
    decision_weights_cpu,
    fill_law,
    fill_residual_law,
    match,
    noise_of,
    workspace,
)
from fairdraft.ops.rows import RowError

_DRAFT_ERROR = int(RowError.DRAFT)


def verify_block_cpu(inputs: ChainInputs, outputs: ChainOutputs) -> np.ndarray:
    """Walks every row of the batch; see `block.verify_block_reference`."""
    num_tested = np.zeros(len(inputs.target), np.int64)
    _verify(*arrays_of(inputs), *noise_of(inputs), (*outputs, num_tested))
    return num_tested


def block_weights_cpu(inputs: ChainInputs, accept: np.ndarray, law: np.ndarray) -> None:
    """Fills in the decision weights; see `block.block_weights_reference`."""
    decision_weights_cpu(inputs, accept, law)
    _decide(*arrays_of(inputs), accept, law)


@njit
def _path_memory(num_rows, vocab_size):
    """What is kept of a path's rows: tiles of p and q, their totals, and rho."""
    num_tiles = (vocab_size + TILE - 1) // TILE
    tiles = np.empty((2, num_rows, 3, num_tiles), np.float32)
    return tiles, np.empty((2, num_rows), np.int64), np.empty(num_rows, np.float64)


@njit
def _tiles(tiles, r):
    return tiles[r, 0], tiles[r, 1], tiles[r, 2]


@njit
def _target_law(logits, path, r):
    """p of a row that was scanned."""
    tiles, totals, _ = path
    return logits[0][r], logits[1], _tiles(tiles[0], r), totals[0, r]


@njit
def _draft_law(logits, path, r):
    """q of a row that was scanned."""
    tiles, totals, _ = path
    return logits[2][r], logits[3], _tiles(tiles[1], r), totals[1, r]


@njit
def _read(logits, drafts, path):
    """Scans rows until rho is 0: the longest prefix to test, an error, drafts with q = 0."""
    target, target_scale, draft, draft_scale = logits
    draft_ids, num_drafts, is_forbidden = drafts
    tiles, totals, rho = path
    num_broken = 0
    rho[0] = 1.0
    for r in range(num_drafts + 1):
        p_law, error = rows.scan(target[r], target_scale, _tiles(tiles[0], r))
        if error != 0:
            return 0, error, num_broken
        totals[0, r] = p_law[3]
        if r == num_drafts:
            break
        q_law, error = rows.scan(draft[r], draft_scale, _tiles(tiles[1], r))
        if error != 0:
            return 0, _DRAFT_ERROR, num_broken
        totals[1, r] = q_law[3]
        p_x = 0.0 if is_forbidden[r] else rows.probability(p_law, draft_ids[r])
        q_x = rows.probability(q_law, draft_ids[r])
        num_broken += q_x == 0
        if not (p_x > 0 and q_x > 0):
            return r, 0, num_broken
        rho[r + 1] = 1.0 if rho[r] * p_x >= q_x else rho[r] * p_x / q_x
        if rho[r + 1] == 0:
            return r, 0, num_broken
    return num_drafts, 0, num_broken


@njit
def _odds(logits, num_drafts, path, r, values):
    """Twin of `rules.block_odds` for the prefix of r drafts."""
    rho = path[2][r]
    if r == num_drafts:
        return rho, 1.0
    p_law, q_law = _target_law(logits, path, r), _draft_law(logits, path, r)
    mass = residual_mass(p_law, q_law, rho, values)
    return mass, mass + (1.0 - rho)


@kernel
def _verify(targets, proposals, drafts, at, is_flat, outputs):
    target, target_starts, target_scale = targets
    draft, draft_starts, draft_scale = proposals
    draft_ids, num_drafts, is_matched, is_forbidden = drafts
    accept_key, accept_counter, final_key, final_counter = at
    token_ids, num_accepted, margin, error, num_broken, num_tested = outputs
    (count, num_rows), vocab_size = token_ids.shape, target.shape[1]
    work, path = workspace(vocab_size, is_flat), _path_memory(num_rows, vocab_size)
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
            continue
        logits = (p_rows, target_scale[b], q_rows, draft_scale[b])
        num_tested[b], error[b], num_broken[b] = _read(
            logits, (draft_ids[b], num_drafts[b], is_forbidden[b]), path
        )
        if error[b] == 0:
            num_accepted[b] = _block(
                logits,
                (draft_ids[b], num_drafts[b], num_tested[b]),
                (accept_key[accept], accept_counter[accept]),
                (final_key[final], final_counter[final]),
                is_flat,
                (work, path),
                (token_ids[b], margin[b]),
            )


@njit
def _block(logits, drafts, accept_at, final_at, is_flat, memory, out):
    """Keeps the longest prefix whose test passes; returns its length."""
    draft_ids, num_drafts, num_tested = drafts
    work, path = memory
    token_ids, margin = out
    failed_margin = passed_margin = np.inf
    r = num_tested
    while r > 0:
        favorable, total = _odds(logits, num_drafts, path, r, work[4])
        u = accept_number(accept_at[0][r - 1], accept_at[1][r - 1])
        if favorable >= total or u * total < favorable:
            if total > 0:
                passed_margin = favorable / (u * total) - 1.0
            break
        if favorable > 0:
            failed_margin = min(failed_margin, u * total / favorable - 1.0)
        r -= 1
    token_ids[:r], margin[:r] = draft_ids[:r], passed_margin
    key, counter = final_at[0][r], final_at[1][r]
    p_law = _target_law(logits, path, r)
    if r == num_drafts:
        token, lead = rows.draw(p_law, is_flat, work[5], key, counter)
    else:
        q_law = _draft_law(logits, path, r)
        token, lead = draw_replacement(p_law, q_law, path[2][r], is_flat, work, key, counter)
    token_ids[r], margin[r] = token, min(failed_margin, lead)
    return r


@kernel
def _decide(targets, proposals, drafts, accept, next_law):
    target, target_starts, target_scale = targets
    draft, draft_starts, draft_scale = proposals
    draft_ids, num_drafts, is_matched, is_forbidden = drafts
    count, num_rows, vocab_size = next_law.shape
    work, path = workspace(vocab_size, False), _path_memory(num_rows, vocab_size)
    for b in range(count):
        if is_matched[b]:
            continue
        p_rows, q_rows = target[target_starts[b] :], draft[draft_starts[b] :]
        logits = (p_rows, target_scale[b], q_rows, draft_scale[b])
        last, error, _ = _read(logits, (draft_ids[b], num_drafts[b], is_forbidden[b]), path)
        accept[b], next_law[b] = 0.0, 0.0
        if error != 0:
            accept[b], next_law[b] = np.nan, np.nan
            continue
        for r in range(last + 1):
            favorable, total = _odds(logits, num_drafts[b], path, r, work[4])
            if r > 0:
                accept[b, r - 1] = 1.0 if favorable >= total else favorable / total
            out = next_law[b, r]
            p_law = _target_law(logits, path, r)
            fill_law(p_law, out)
            if r < num_drafts[b]:
                q_law = _draft_law(logits, path, r)
                fill_residual_law(p_law, q_law, path[2][r], work[4], out)
            out /= out.sum()
