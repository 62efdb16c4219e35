"""The lossy rules of `ops.verify_chain` on the CPU: numba twin of `ops/lossy_chain.py`.

Same tokens; rows past the first rejection are not read, and q only where a residual needs it.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fairdraft.ops import lossy
from fairdraft.ops.chain_inputs import ChainInputs, ChainOutputs
from fairdraft.ops.cpu import arithmetic
from fairdraft.ops.cpu import row as rows
from fairdraft.ops.cpu.arithmetic import FIXED_POINT, TILE
from fairdraft.ops.cpu.kernel import kernel
from fairdraft.ops.cpu.residual import draw_replacement
from fairdraft.ops.cpu.verify import (
    accept_number,
    arrays_of,
    fill_law,
    fill_residual_law,
    noise_of,
    workspace,
)
from fairdraft.ops.lossy import LossyRule, Numbers
from fairdraft.ops.rows import RowError

_DRAFT_ERROR = int(RowError.DRAFT)
_MINUS_INF = np.float32(-np.inf)
_ONE = np.float32(1)
_WHOLE, _RESIDUAL = lossy.WHOLE, lossy.RESIDUAL
_chance_of = njit(lossy.chance)


def verify_lossy_cpu(rule: LossyRule, inputs: ChainInputs, outputs: ChainOutputs) -> None:
    """Walks every row of the batch; see `lossy_chain.verify_lossy_reference`."""
    _verify(_numbers(rule, inputs), *arrays_of(inputs), *noise_of(inputs), tuple(outputs))


def lossy_weights_cpu(
    rule: LossyRule, inputs: ChainInputs, accept: np.ndarray, law: np.ndarray
) -> None:
    """Fills in the decision weights; see `lossy_chain.lossy_weights_reference`."""
    _decide(_numbers(rule, inputs), *arrays_of(inputs), accept, law)


def _numbers(rule: LossyRule, inputs: ChainInputs) -> tuple:
    return tuple(Numbers.of(rule, inputs.token_ids.shape[1]))


@njit
def _tile_spread(tile, top, c, terms):
    """Twin of `lossy.tile_spreads` on one tile that is not empty; `terms` is scratch."""
    for j in range(len(tile)):
        weight = arithmetic.exp2_weight(tile[j] - top, c)
        terms[j] = weight * ((top - tile[j]) * c) if weight > 0 else np.float32(0)
    return arithmetic.exact_sum(terms[: len(tile)])


@njit
def _certainty(law):
    """Twin of `lossy.certainty`."""
    row, c, tiles, total = law
    if c == 0:
        return 1.0
    row_max, units, terms = tiles[0].max(), np.int64(0), np.empty(TILE, np.float32)
    for t in range(len(tiles[0])):
        scale = np.float64(tiles[2][t])
        if scale > 0.0:
            lead = np.float64(row_max - tiles[0][t]) * np.float64(c)
            own = _tile_spread(row[t * TILE : (t + 1) * TILE], tiles[0][t], c, terms)
            bits = scale * (np.float64(own) + np.float64(tiles[1][t]) * lead)
            units += np.int64(bits * FIXED_POINT)
    spread = np.float64(units) / np.float64(total)
    best = FIXED_POINT / np.float64(total)
    return np.float64(arithmetic.exp2_weight(np.float32(-spread), _ONE)) * best


@njit
def _chance(rule, law, x, is_forbidden, r):
    """The chance that a draft stands; 0 if the target excludes it."""
    kind, values, _ = rule
    row, c, _, _ = law
    if is_forbidden or x < 0 or x >= len(row) or row[x] == _MINUS_INF:
        return 0.0
    p_x = rows.probability(law, x) if c > 0 else np.float64(rows.greedy(row)[0] == x)
    return _chance_of(kind, values, r, p_x, _certainty(law) if kind == 0 else 0.0)


@njit
def _draw_unmatched(law, x, is_flat, work, key, counter):
    """Draws from p without token x, or from p where nothing else is in it."""
    row, c, tiles, _ = law
    if 0 <= x < len(row):
        rest = row.copy()
        rest[x] = _MINUS_INF
        rest_law, error = rows.scan(rest, c, work[1])
        if error == 0:
            return rows.draw(rest_law, is_flat, work[5], key, counter)
    return rows.draw(law, is_flat, work[5], key, counter)


@kernel
def _verify(rule, targets, proposals, drafts, at, is_flat, outputs):
    target, target_starts, target_scale = targets
    draft, draft_starts, draft_scale = proposals
    draft_ids, num_drafts, is_matched, is_forbidden = drafts
    accept_key, accept_counter, final_key, final_counter = at
    token_ids, num_accepted, margin, error, _ = outputs
    count, num_rows = token_ids.shape
    work = workspace(target.shape[1], is_flat)
    for b in range(count):
        p_rows, q_rows, c = target[target_starts[b] :], draft[draft_starts[b] :], target_scale[b]
        for r in range(num_drafts[b] + 1):
            law, error[b] = rows.scan(p_rows[r], c, work[0])
            if error[b] != 0:
                break
            final, test, lead = b * num_rows + r, b * (num_rows - 1) + r, np.inf
            key, counter = final_key[final], final_counter[final]
            is_whole = r == num_drafts[b] or rule[2] == _WHOLE
            if r < num_drafts[b]:
                x = draft_ids[b, r]
                share = _chance(rule, law, x, is_forbidden[b, r], r)
                u = accept_number(accept_key[test], accept_counter[test])
                if u < share:
                    token_ids[b, r], margin[b, r] = x, share / u - 1.0
                    num_accepted[b] = r + 1
                    continue
                if share > 0:
                    lead = u / share - 1.0
            if rule[2] == _RESIDUAL and r < num_drafts[b] and not is_matched[b]:
                q_law, q_error = rows.scan(q_rows[r], draft_scale[b], work[1])
                if q_error != 0:
                    error[b] = _DRAFT_ERROR
                    break
                token, gap = draw_replacement(law, q_law, 1.0, is_flat, work, key, counter)
            elif c == 0:
                token, gap = rows.greedy(p_rows[r])
            elif is_whole:
                token, gap = rows.draw(law, is_flat, work[5], key, counter)
            else:
                token, gap = _draw_unmatched(law, draft_ids[b, r], is_flat, work, key, counter)
            token_ids[b, r], margin[b, r] = token, min(lead, gap)
            break


@kernel
def _decide(rule, targets, proposals, drafts, accept, next_law):
    target, target_starts, target_scale = targets
    draft, draft_starts, draft_scale = proposals
    draft_ids, num_drafts, is_matched, is_forbidden = drafts
    work = workspace(target.shape[1], False)
    for b in range(len(num_drafts)):
        p_rows, q_rows = target[target_starts[b] :], draft[draft_starts[b] :]
        for r in range(num_drafts[b] + 1):
            out = next_law[b, r]
            law, error = rows.scan(p_rows[r], target_scale[b], work[0])
            if error != 0:
                out[:] = np.nan
                continue
            fill_law(law, out)
            if r < num_drafts[b]:
                x = draft_ids[b, r]
                accept[b, r] = _chance(rule, law, x, is_forbidden[b, r], r)
                if target_scale[b] > 0 and rule[2] != _WHOLE:
                    if rule[2] == _RESIDUAL and not is_matched[b]:
                        q_law, _ = rows.scan(q_rows[r], draft_scale[b], work[1])
                        fill_residual_law(law, q_law, 1.0, work[4], out)
                    elif 0 <= x < len(out):
                        p_x, out[x] = out[x], 0.0
                        if not out.any():
                            out[x] = p_x
            out /= out.sum()
