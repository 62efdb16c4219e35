"""The reference walk under a lossy rule: each draft by its chance, whatever its law.

p is the target's law and q the draft's. Every draft tested consumes its ACCEPT number, and what
replaces it is drawn at RESIDUAL, as under rule `token`.
"""

from __future__ import annotations

import numpy as np

from fairdraft.noise.exponential import acceptance
from fairdraft.ops import rules
from fairdraft.ops.arithmetic import row_weights
from fairdraft.ops.chain import law_of, replacement, target_row, target_token
from fairdraft.ops.chain_inputs import ChainInputs, ChainOutputs
from fairdraft.ops.lossy import (
    RESIDUAL,
    WHOLE,
    LossyRule,
    Numbers,
    certainty,
    chance,
)
from fairdraft.ops.rows import RowError, row_error


def verify_lossy_reference(rule: LossyRule, inputs: ChainInputs, outputs: ChainOutputs) -> None:
    """Walks every row of the batch; the specification of the lossy rules."""
    count, depth = inputs.token_ids.shape
    numbers = Numbers.of(rule, depth)
    for b in range(count):
        for r in range(inputs.num_drafts[b] + 1):
            row, outputs.error[b] = target_row(inputs, b, r)
            if outputs.error[b]:
                break
            failed_margin = np.inf
            if r < inputs.num_drafts[b]:
                share = _chance(numbers, inputs, row, b, r)
                u = acceptance(inputs.accept_at[b * depth + r])[0]
                if u < share:
                    outputs.token_ids[b, r] = inputs.token_ids[b, r]
                    outputs.margin[b, r] = share / u - 1
                    outputs.num_accepted[b] = r + 1
                    continue
                failed_margin = u / share - 1 if share > 0 else np.inf
                if _needs_q(numbers, inputs, b) and row_error(inputs.draft[b, r]):
                    outputs.error[b] = RowError.DRAFT
                    break
                token, margin = _replaced(numbers, inputs, row, b, r)
            else:
                token, margin = target_token(inputs, row, b, r)
            outputs.token_ids[b, r], outputs.margin[b, r] = token, min(failed_margin, margin)
            break


def lossy_weights_reference(
    rule: LossyRule, inputs: ChainInputs, accept: np.ndarray, law: np.ndarray
) -> None:
    """Fills in accept probabilities [B, K] and next laws [B, K + 1, V]; see `DecisionWeights`."""
    count, depth = inputs.token_ids.shape
    numbers = Numbers.of(rule, depth)
    for b in range(count):
        for r in range(inputs.num_drafts[b] + 1):
            row, error = target_row(inputs, b, r)
            if error:
                law[b, r] = np.nan
                continue
            p = law_of(row, inputs.target_scale[b])
            if r < inputs.num_drafts[b]:
                accept[b, r] = _chance(numbers, inputs, row, b, r)
                if inputs.target_scale[b] > 0 and numbers.replaced != WHOLE:
                    if _needs_q(numbers, inputs, b):
                        p = rules.replacement(p, law_of(inputs.draft[b, r], inputs.draft_scale[b]))
                    else:
                        p = rules.unmatched(p, int(inputs.token_ids[b, r]))
            law[b, r] = p / p.sum()


def _chance(numbers: Numbers, inputs: ChainInputs, row: np.ndarray, b: int, r: int) -> float:
    x, c = int(inputs.token_ids[b, r]), inputs.target_scale[b]
    is_open = not inputs.is_forbidden[b, r] and 0 <= x < len(row) and row[x] > -np.inf
    if not is_open:
        return 0.0
    p_x = float(law_of(row, c)[x])
    sure = certainty(row, c, row_weights(row, c)) if numbers.kind == 0 else 0.0
    return float(chance(numbers.kind, numbers.values, r, p_x, sure))


def _needs_q(numbers: Numbers, inputs: ChainInputs, b: int) -> bool:
    return numbers.replaced == RESIDUAL and not inputs.is_matched[b]


def _replaced(
    numbers: Numbers, inputs: ChainInputs, row: np.ndarray, b: int, r: int
) -> tuple[int, float]:
    """What follows a rejected draft; a greedy row's best token, whatever was drafted."""
    c, x = inputs.target_scale[b], int(inputs.token_ids[b, r])
    if c == 0 or numbers.replaced == WHOLE:
        return target_token(inputs, row, b, r)
    if _needs_q(numbers, inputs, b):
        q = law_of(inputs.draft[b, r], inputs.draft_scale[b])
        return replacement(inputs, row, rules.residual(law_of(row, c), q), b, r)
    if 0 <= x < len(row):
        rest = row.copy()
        rest[x] = -np.inf
        row = row if row_error(rest) else rest
    return target_token(inputs, row, b, r)
