"""The reference walk down a tree of drafts, readable against recursive rejection sampling.

Jeon et al. 2024 (RSD, arXiv 2402.14160); the same as Yang et al. 2024 (multi-candidate, arXiv
2401.06706), of which SpecInfer's multi-step sampling (Miao et al. 2024, arXiv 2305.09781) is the
form with replacement; on trees as in Sequoia (Chen et al. 2024, arXiv 2402.12374). p is the
target's law after a node, q the law that a child was drawn from: that of its group without the
siblings drawn before it. `docs/rules.md` has the proof.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fairdraft.noise.exponential import acceptance
from fairdraft.ops import rules
from fairdraft.ops.arithmetic import row_weights, scaled_weights
from fairdraft.ops.race import race
from fairdraft.ops.rows import RowError, row_error
from fairdraft.ops.sample import greedy
from fairdraft.ops.tree_inputs import TreeInputs, TreeOutputs


class Candidate(NamedTuple):
    """One child at its test.

    Attributes:
        node: Its number.
        p_x: r(x), what is left of the target's law after the siblings rejected so far; r = p first.
        q_x: q(x).
        rest: max(r - q, 0), not normalized: what is left if it is rejected too.
        error: DRAFT if q is no law; nothing else holds then.
    """

    node: int
    p_x: float
    q_x: float
    rest: np.ndarray
    error: RowError


def verify_tree_reference(inputs: TreeInputs, outputs: TreeOutputs) -> None:
    """Walks every row of the batch; the specification of rule `tree`."""
    for b in range(len(inputs.target)):
        step = _match if inputs.is_matched[b] else _reject
        node = depth = 0
        while True:
            outputs.path[b, depth] = node
            outputs.num_accepted[b] = depth
            row = inputs.target[b, node]
            outputs.error[b] = row_error(row)
            if outputs.error[b]:
                break
            node = step(inputs, outputs, row, b, depth)
            if not node:
                break
            depth += 1


def _match(inputs: TreeInputs, outputs: TreeOutputs, row: np.ndarray, b: int, depth: int) -> int:
    """Sample-and-match: the target's own token; the child that equals it, or 0."""
    node = int(outputs.path[b, depth])
    token, margin = _target_token(inputs, row, b, node)
    outputs.token_ids[b, depth], outputs.margin[b, depth] = token, margin
    for c in inputs.shape.children(b, node):
        if inputs.token_ids[b, c - 1] == token:
            return c
    return 0


def _reject(inputs: TreeInputs, outputs: TreeOutputs, row: np.ndarray, b: int, depth: int) -> int:
    """Tests the children in the order drawn; the one that stands, or 0 with a token in place."""
    node = int(outputs.path[b, depth])
    lead, rest = np.inf, None
    for found in candidates(inputs, row, b, node):
        c, p_x, q_x, rest, error = found
        if error:
            outputs.error[b] = error
            return 0
        outputs.is_tested[b, c - 1] = True
        outputs.num_broken[b] += q_x == 0
        u = acceptance(inputs.accept_at[b * inputs.token_ids.shape[1] + c - 1])[0]
        if rules.is_accepted(p_x, q_x, u):
            outputs.token_ids[b, depth] = inputs.token_ids[b, c - 1]
            outputs.margin[b, depth] = min(lead, p_x / (u * q_x) - 1)
            return c
        if p_x > 0:
            lead = min(lead, u * q_x / p_x - 1)
    if rest is None or not rest.any():
        token, margin = _target_token(inputs, row, b, node)
    else:
        token, margin = race(scaled_weights(rest), inputs.final_at, _row(inputs, b, node))
    outputs.token_ids[b, depth], outputs.margin[b, depth] = token, min(lead, margin)
    return 0


def candidates(inputs: TreeInputs, row: np.ndarray, b: int, node: int) -> Iterator[Candidate]:
    """The children of a node, each as it is tested once all before it were rejected.

    Recursive rejection: accept x_k ~ q_k with chance min(1, r(x_k) / q_k(x_k)), else
    r <- norm(max(r - q_k, 0)), where q_k is q without x_1, .., x_(k-1). It ends where nothing is
    left of r, which is a matter of rounding.
    """
    rest = _law(row, inputs.target_scale[b])
    earlier: list[int] = []
    for c in inputs.shape.children(b, node):
        if earlier:
            mass = rules.residual_mass(rest)
            if mass == 0:
                return
            rest = rest / mass
        x = int(inputs.token_ids[b, c - 1])
        draft = _without(inputs.draft[b, c - 1], earlier)
        if row_error(draft):
            yield Candidate(c, 0.0, 0.0, rest, RowError.DRAFT)
            return
        q = _law(draft, inputs.draft_scale[b])
        is_known = 0 <= x < len(q)
        p_x = float(rest[x]) if is_known and not inputs.is_forbidden[b, c - 1] else 0.0
        rest = rules.residual(rest, q)
        yield Candidate(c, p_x, float(q[x]) if is_known else 0.0, rest, RowError.NONE)
        earlier.append(x)


def tree_weights_reference(inputs: TreeInputs, accept: np.ndarray, law: np.ndarray) -> None:
    """Fills in accept probabilities [B, N] and next laws [B, N + 1, V] of present nodes."""
    for b in range(len(inputs.target)):
        for node in np.flatnonzero(inputs.shape.is_present[b]).tolist():
            row = inputs.target[b, node]
            if row_error(row):
                law[b, node] = np.nan
                continue
            p = rest = _law(row, inputs.target_scale[b])
            if inputs.is_matched[b]:
                for c in inputs.shape.children(b, node):
                    x = int(inputs.token_ids[b, c - 1])
                    if 0 <= x < len(p) and rest[x] > 0:
                        accept[b, c - 1] = rest[x]
                        rest = rules.unmatched(rest, x)
                        rest = rest / rest.sum()
            else:
                for c, p_x, q_x, rest, error in candidates(inputs, row, b, node):
                    if error:
                        rest = np.full_like(p, np.nan)
                        break
                    accept[b, c - 1] = rules.accept_probability(p_x, q_x)
            law[b, node] = rest if rest.any() else p
            law[b, node] /= law[b, node].sum()


def _law(row: np.ndarray, scale: np.float32) -> np.ndarray:
    if scale == 0:
        return (np.arange(len(row)) == row.argmax()).astype(np.float64)
    return row_weights(row, scale).probabilities()[: len(row)]


def _without(row: np.ndarray, token_ids: list[int]) -> np.ndarray:
    known = [x for x in token_ids if 0 <= x < len(row)]
    if not known:
        return row
    row = row.copy()
    row[known] = -np.inf
    return row


def _target_token(inputs: TreeInputs, row: np.ndarray, b: int, node: int) -> tuple[int, float]:
    if inputs.target_scale[b] == 0:
        return greedy(row)
    return race(row_weights(row, inputs.target_scale[b]), inputs.final_at, _row(inputs, b, node))


def _row(inputs: TreeInputs, b: int, node: int) -> int:
    return b * inputs.target.shape[1] + node
