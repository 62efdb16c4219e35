"""The reference of block verification, readable against Sun et al. 2024, algorithm 2.

p is the target's law and q the draft's (M_b and M_s there), rho_i is its p_i. arXiv 2403.10444; not
the greedy variant of its appendix, which changes the rounds that follow.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fairdraft.noise.exponential import acceptance
from fairdraft.ops import rules
from fairdraft.ops.arithmetic import row_weights
from fairdraft.ops.chain import (
    decision_weights_reference,
    match,
    replacement,
    target_row,
    target_token,
)
from fairdraft.ops.chain_inputs import ChainInputs, ChainOutputs
from fairdraft.ops.rows import RowError, row_error


def verify_block_reference(inputs: ChainInputs, outputs: ChainOutputs) -> np.ndarray:
    """Walks every row of the batch; the specification of rule `block`.

    Returns:
        int64 [B], the longest prefix of each row that was tested; matched rows hold 0.
    """
    num_tested = np.zeros(len(inputs.target), np.int64)
    is_matched = inputs.is_matched
    for b in range(len(inputs.target)):
        if is_matched[b]:
            match(inputs, outputs, b)
        else:
            num_tested[b] = _block(inputs, outputs, b)
    return num_tested


class _Prefix(NamedTuple):
    """A prefix of the drafts and the row after it.

    Attributes:
        row: The target's logits [V].
        p: Their law [V].
        rho: min(.. min(p(x_1) / q(x_1), 1) p(x_2) / q(x_2) .., 1) along the prefix.
        residual: max(rho p - q, 0) [V]; None after the last draft.
    """

    row: np.ndarray
    p: np.ndarray
    rho: float
    residual: np.ndarray | None

    def odds(self) -> tuple[float, float]:
        """h as a fraction; see `rules.block_odds`."""
        mass = None if self.residual is None else rules.residual_mass(self.residual)
        return rules.block_odds(self.rho, mass)


def _prefixes(inputs: ChainInputs, b: int) -> tuple[list[_Prefix], RowError, int]:
    """Reads the rows of prefixes 0, 1, .. until one has rho = 0, since none after it can stand.

    Returns:
        The prefixes (none on an error), the error, and how many drafts read had q = 0.
    """
    vocab_size = inputs.target.shape[2]
    found: list[_Prefix] = []
    rho, num_broken = 1.0, 0
    for r in range(inputs.num_drafts[b] + 1):
        is_last = r == inputs.num_drafts[b]
        row, error = target_row(inputs, b, r)
        if not error and not is_last and row_error(inputs.draft[b, r]):
            error = RowError.DRAFT
        if error:
            return [], error, num_broken
        p = row_weights(row, inputs.target_scale[b]).probabilities()[:vocab_size]
        if is_last:
            found.append(_Prefix(row, p, rho, None))
            break
        q = row_weights(inputs.draft[b, r], inputs.draft_scale[b]).probabilities()[:vocab_size]
        found.append(_Prefix(row, p, rho, rules.residual(rho * p, q)))
        x = inputs.token_ids[b, r]
        p_x, q_x = (float(p[x]), float(q[x])) if 0 <= x < vocab_size else (0.0, 0.0)
        num_broken += q_x == 0
        # the target's row gives a forbidden draft p = 0
        rho = rules.path_ratio(rho, p_x, q_x)
        if rho == 0:
            break
    return found, RowError.NONE, num_broken


def _block(inputs: ChainInputs, outputs: ChainOutputs, b: int) -> int:
    """Keeps the longest prefix whose test passes; returns the longest that was tested.

    The tests are independent of each other, so they are made from the last one back.
    """
    prefixes, outputs.error[b], outputs.num_broken[b] = _prefixes(inputs, b)
    if outputs.error[b]:
        return 0
    depth = inputs.token_ids.shape[1]
    failed_margin = passed_margin = np.inf
    r = len(prefixes) - 1
    while r > 0:
        favorable, total = prefixes[r].odds()
        u = acceptance(inputs.accept_at[b * depth + r - 1])[0]
        if rules.stands(favorable, total, u):
            passed_margin = favorable / (u * total) - 1 if total > 0 else np.inf
            break
        if favorable > 0:
            failed_margin = min(failed_margin, u * total / favorable - 1)
        r -= 1
    outputs.num_accepted[b] = r
    outputs.token_ids[b, :r], outputs.margin[b, :r] = inputs.token_ids[b, :r], passed_margin
    row, _, _, residual = prefixes[r]
    if residual is None:
        token, margin = target_token(inputs, row, b, r)
    else:
        token, margin = replacement(inputs, row, residual, b, r)
    outputs.token_ids[b, r], outputs.margin[b, r] = token, min(failed_margin, margin)
    return len(prefixes) - 1


def block_weights_reference(inputs: ChainInputs, accept: np.ndarray, law: np.ndarray) -> None:
    """Fills in accept probabilities [B, K] and next laws [B, K + 1, V]; see `DecisionWeights`."""
    decision_weights_reference(inputs, accept, law)
    for b in np.flatnonzero(~inputs.is_matched).tolist():
        prefixes, error, _ = _prefixes(inputs, b)
        accept[b], law[b] = (np.nan, np.nan) if error else (0.0, 0.0)
        for r, prefix in enumerate(prefixes):
            if r > 0:
                accept[b, r - 1] = rules.block_accept_probability(*prefix.odds())
            has_residual = prefix.residual is not None and prefix.residual.any()
            law[b, r] = prefix.residual if has_residual else prefix.p
            law[b, r] /= law[b, r].sum()
