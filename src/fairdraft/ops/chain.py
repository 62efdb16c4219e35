"""The reference walk along a chain of drafts, readable against Leviathan et al. 2023, algorithm 1.

p is the target's law and q the draft's, as in the paper.
"""

from __future__ import annotations

import numpy as np

from fairdraft.noise.exponential import acceptance
from fairdraft.ops import rules
from fairdraft.ops.arithmetic import (
    flat_scaled_weights,
    flat_weights,
    row_weights,
    scaled_weights,
)
from fairdraft.ops.chain_inputs import ChainInputs, ChainOutputs
from fairdraft.ops.race import flat_race, race
from fairdraft.ops.rows import RowError, row_error
from fairdraft.ops.sample import greedy


def verify_reference(inputs: ChainInputs, outputs: ChainOutputs) -> None:
    """Walks every row of the batch; the specification of rule `token`."""
    is_matched = inputs.is_matched
    for b in range(len(inputs.target)):
        if is_matched[b]:
            match(inputs, outputs, b)
        else:
            _ratio(inputs, outputs, b)


def target_row(inputs: ChainInputs, b: int, r: int) -> tuple[np.ndarray, RowError]:
    """Row r, with a forbidden draft's token masked: the caller says that p is 0 there."""
    row = inputs.target[b, r]
    if r < inputs.num_drafts[b] and inputs.is_forbidden[b, r]:
        x = inputs.token_ids[b, r]
        if 0 <= x < len(row):
            row = row.copy()
            row[x] = -np.inf
    return row, row_error(row)


def target_token(inputs: ChainInputs, row: np.ndarray, b: int, r: int) -> tuple[int, float]:
    """The target's own token at row r, and its margin."""
    if inputs.target_scale[b] == 0:
        return greedy(row)
    scale, at_row = inputs.target_scale[b], b * inputs.target.shape[1] + r
    if inputs.method == "gumbel":
        return flat_race(flat_weights(row, scale), inputs.final_at, at_row)
    return race(row_weights(row, scale), inputs.final_at, at_row)


def match(inputs: ChainInputs, outputs: ChainOutputs, b: int) -> None:
    """Sample-and-match: the target's own token at each row; a draft stands if it equals it."""
    for r in range(inputs.num_drafts[b] + 1):
        row, outputs.error[b] = target_row(inputs, b, r)
        if outputs.error[b]:
            return
        outputs.token_ids[b, r], outputs.margin[b, r] = target_token(inputs, row, b, r)
        if r == inputs.num_drafts[b] or outputs.token_ids[b, r] != inputs.token_ids[b, r]:
            return
        outputs.num_accepted[b] = r + 1


def _ratio(inputs: ChainInputs, outputs: ChainOutputs, b: int) -> None:
    """Keep x ~ q with chance min(1, p(x) / q(x)), else draw from max(p - q, 0)."""
    num_rows, vocab_size = inputs.target.shape[1:]
    for r in range(inputs.num_drafts[b]):
        row, outputs.error[b] = target_row(inputs, b, r)
        if not outputs.error[b] and row_error(inputs.draft[b, r]):
            outputs.error[b] = RowError.DRAFT
        if outputs.error[b]:
            return
        x = inputs.token_ids[b, r]
        p = row_weights(row, inputs.target_scale[b]).probabilities()[:vocab_size]
        q = row_weights(inputs.draft[b, r], inputs.draft_scale[b]).probabilities()[:vocab_size]
        p_x, q_x = (float(p[x]), float(q[x])) if 0 <= x < vocab_size else (0.0, 0.0)
        is_forbidden = inputs.is_forbidden[b, r]
        outputs.num_broken[b] += q_x == 0
        u = acceptance(inputs.accept_at[b * (num_rows - 1) + r])[0]
        if not is_forbidden and rules.is_accepted(p_x, q_x, u):
            outputs.token_ids[b, r] = x
            outputs.margin[b, r] = p_x / (u * q_x) - 1
            outputs.num_accepted[b] = r + 1
            continue
        test_margin = u * q_x / p_x - 1 if p_x > 0 and not is_forbidden else np.inf
        token, margin = replacement(inputs, row, rules.residual(p, q), b, r)
        outputs.token_ids[b, r], outputs.margin[b, r] = token, min(test_margin, margin)
        return
    r = inputs.num_drafts[b]
    row, outputs.error[b] = target_row(inputs, b, r)
    if not outputs.error[b]:
        outputs.token_ids[b, r], outputs.margin[b, r] = target_token(inputs, row, b, r)


def replacement(
    inputs: ChainInputs, row: np.ndarray, residual: np.ndarray, b: int, r: int
) -> tuple[int, float]:
    """A token from the residual, or from p where that is empty."""
    if not residual.any():
        return target_token(inputs, row, b, r)
    at_row = b * inputs.target.shape[1] + r
    if inputs.method == "gumbel":
        return flat_race(flat_scaled_weights(residual), inputs.final_at, at_row)
    return race(scaled_weights(residual), inputs.final_at, at_row)


def decision_weights_reference(inputs: ChainInputs, accept: np.ndarray, law: np.ndarray) -> None:
    """Fills in accept probabilities [B, K] and next laws [B, K + 1, V] of every present row."""
    is_matched = inputs.is_matched
    for b in range(len(inputs.target)):
        for r in range(inputs.num_drafts[b] + 1):
            row, error = target_row(inputs, b, r)
            if error:
                law[b, r] = np.nan
                continue
            is_last = r == inputs.num_drafts[b]
            x = -1 if is_last or inputs.is_forbidden[b, r] else inputs.token_ids[b, r]
            p = law_of(row, inputs.target_scale[b])
            if is_last:
                law[b, r] = p
            elif is_matched[b]:
                accept[b, r] = p[x] if x >= 0 else 0.0
                law[b, r] = rules.unmatched(p, x)
            else:
                q = law_of(inputs.draft[b, r], inputs.draft_scale[b])
                accept[b, r] = rules.accept_probability(p[x], q[x]) if x >= 0 else 0.0
                law[b, r] = rules.replacement(p, q)
            law[b, r] /= law[b, r].sum()


def law_of(row: np.ndarray, scale: np.float32) -> np.ndarray:
    """A row's law float64 [V]; one token of a greedy row."""
    if scale == 0:
        return (np.arange(len(row)) == row.argmax()).astype(np.float64)
    return row_weights(row, scale).probabilities()[: len(row)]
