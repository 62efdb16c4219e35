"""`ops.verify_tree` on the CPU: numba twin of `ops/tree.py`, same tokens.

Rows of logits are scanned where the walk reads them; what is left of p is stored only once a
candidate of its row was rejected.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fairdraft.ops.cpu import row as rows
from fairdraft.ops.cpu.kernel import kernel
from fairdraft.ops.cpu.verify import accept_number, fill_law, workspace
from fairdraft.ops.cpu.weights import mass, race_weights, subtract_law
from fairdraft.ops.flat_rows import as_flat
from fairdraft.ops.rows import RowError
from fairdraft.ops.tree_inputs import TreeInputs, TreeOutputs

_MINUS_INF = np.float32(-np.inf)
_DRAFT_ERROR = int(RowError.DRAFT)


def verify_tree_cpu(inputs: TreeInputs, outputs: TreeOutputs) -> None:
    """Walks every row of the batch; see `tree.verify_tree_reference`."""
    accept_at, final_at = inputs.accept_at, inputs.final_at
    _verify(
        *_arrays(inputs),
        (accept_at.key, accept_at.counter, final_at.key, final_at.counter),
        tuple(outputs),
    )


def tree_weights_cpu(inputs: TreeInputs, accept: np.ndarray, law: np.ndarray) -> None:
    """Fills in the decision weights; see `tree.tree_weights_reference`."""
    _decide(*_arrays(inputs), inputs.shape.is_present, accept, law)


def _arrays(inputs: TreeInputs) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    shape = inputs.shape
    draft, _ = as_flat(inputs.draft)
    # no rows if all are point masses, but a kernel takes three axes
    size = inputs.token_ids.shape if len(draft) else (0, 0)
    laws = draft.reshape(*size, inputs.target.shape[2])
    drafts = (inputs.token_ids, inputs.is_forbidden, inputs.is_matched)
    return (
        (inputs.target, inputs.target_scale, laws, inputs.draft_scale),
        (*drafts, shape.first_child, shape.next_sibling),
    )


@kernel
def _verify(laws, drafts, at, outputs):
    target, target_scale, draft, draft_scale = laws
    draft_ids, is_forbidden, is_matched, first_child, next_sibling = drafts
    token_ids, path, num_accepted, margin, error, num_broken, is_tested = outputs
    count, num_rows, vocab_size = target.shape
    memory = workspace(vocab_size, False), np.empty(vocab_size), np.empty(vocab_size, np.float32)
    for b in range(count):
        tree = draft_ids[b], is_forbidden[b], first_child[b], next_sibling[b]
        finals, accepts = b * num_rows, b * (num_rows - 1)
        node = depth = 0
        while True:
            path[b, depth], num_accepted[b] = node, depth
            final_at = at[2][finals + node], at[3][finals + node]
            p_law, error[b] = rows.scan(target[b, node], target_scale[b], memory[0][0])
            if error[b] != 0:
                break
            if is_matched[b]:
                node, token, lead = _match(p_law, tree, node, memory, final_at)
            else:
                node, token, lead, failed, broken = _reject(
                    (p_law, draft[b], draft_scale[b]),
                    tree,
                    node,
                    memory,
                    (at[0][accepts:], at[1][accepts:]),
                    final_at,
                    is_tested[b],
                )
                error[b], num_broken[b] = failed, num_broken[b] + broken
                if failed != 0:
                    break
            token_ids[b, depth], margin[b, depth] = token, lead
            if node == 0:
                break
            depth += 1


@njit
def _match(p_law, tree, node, memory, final_at):
    """Sample-and-match: the child that equals the target's own token, or 0; token and margin."""
    draft_ids, _, first_child, next_sibling = tree
    if p_law[1] == 0:
        token, margin = rows.greedy(p_law[0])
    else:
        token, margin = rows.draw(p_law, False, memory[0][5], final_at[0], final_at[1])
    c = first_child[node]
    while c != 0 and draft_ids[c - 1] != token:
        c = next_sibling[c]
    return c, token, margin


@njit
def _sibling_law(draft, scale, tree, first, c, memory):
    """q of a candidate: its group's law without the siblings drawn before it, and a RowError."""
    draft_ids, _, _, next_sibling = tree
    row = draft[c - 1]
    if c != first:
        row = memory[2]
        row[:] = draft[c - 1]
        s = first
        while s != c:
            if 0 <= draft_ids[s - 1] < len(row):
                row[draft_ids[s - 1]] = _MINUS_INF
            s = next_sibling[s]
    return rows.scan(row, scale, memory[0][1])


@njit
def _reject(laws, tree, node, memory, accept_at, final_at, is_tested):
    """Tests the children of a node: child or 0, token, margin, error, drafts with q = 0."""
    p_law, draft, draft_scale = laws
    draft_ids, is_forbidden, first_child, next_sibling = tree
    work, rest, _ = memory
    lead, num_broken = np.inf, 0
    first = c = first_child[node]
    while c != 0:
        x = draft_ids[c - 1]
        q_law, error = _sibling_law(draft, draft_scale, tree, first, c, memory)
        if error != 0:
            return 0, -1, 0.0, _DRAFT_ERROR, num_broken
        p_x, q_x = 0.0, rows.probability(q_law, x)
        if 0 <= x < len(rest) and not is_forbidden[c - 1]:
            p_x = rows.probability(p_law, x) if c == first else rest[x]
        is_tested[c - 1] = True
        num_broken += q_x == 0
        u = accept_number(accept_at[0][c - 1], accept_at[1][c - 1])
        if p_x > 0 and q_x > 0 and (p_x >= q_x or u * q_x < p_x):
            return c, x, min(lead, p_x / (u * q_x) - 1.0), 0, num_broken
        if p_x > 0:
            lead = min(lead, u * q_x / p_x - 1.0)
        if c == first:
            fill_law(p_law, rest)
        subtract_law(rest, q_law)
        c = next_sibling[c]
        if c != 0 and not _normalize(rest):
            break
    token, margin = -1, 0.0
    if first != 0:
        token, margin = race_weights(rest, work[2], work[3], work[5], *final_at)
    if token < 0:
        token, margin = rows.draw(p_law, False, work[5], final_at[0], final_at[1])
    return 0, token, min(lead, margin), 0, num_broken


@njit
def _normalize(rest):
    """Makes what is left of p a law; False if nothing is."""
    total = mass(rest)
    if total == 0.0:
        return False
    rest /= total
    return True


@kernel
def _decide(laws, drafts, is_present, accept, next_law):
    target, target_scale, draft, draft_scale = laws
    draft_ids, is_forbidden, is_matched, first_child, next_sibling = drafts
    count, num_rows, vocab_size = target.shape
    memory = workspace(vocab_size, False), np.empty(vocab_size), np.empty(vocab_size, np.float32)
    for b in range(count):
        tree = draft_ids[b], is_forbidden[b], first_child[b], next_sibling[b]
        for node in range(num_rows):
            if not is_present[b, node]:
                continue
            out = next_law[b, node]
            p_law, error = rows.scan(target[b, node], target_scale[b], memory[0][0])
            if error != 0:
                out[:] = np.nan
                continue
            fill_law(p_law, out)
            if is_matched[b]:
                _decide_matched(tree, node, accept[b], out)
            else:
                _decide_tested((draft[b], draft_scale[b]), tree, node, memory, accept[b], out)
            if not out.any():
                fill_law(p_law, out)
            out /= out.sum()


@njit
def _decide_matched(tree, node, accept, out):
    draft_ids, _, first_child, next_sibling = tree
    c = first_child[node]
    while c != 0:
        x = draft_ids[c - 1]
        if 0 <= x < len(out) and out[x] > 0:
            accept[c - 1] = out[x]
            out[x] = 0.0
            if not out.any():
                out[x] = 1.0
            out /= out.sum()
        c = next_sibling[c]


@njit
def _decide_tested(q_rows, tree, node, memory, accept, out):
    draft_ids, is_forbidden, first_child, next_sibling = tree
    first = c = first_child[node]
    while c != 0:
        x = draft_ids[c - 1]
        q_law, error = _sibling_law(q_rows[0], q_rows[1], tree, first, c, memory)
        if error != 0:
            out[:] = np.nan
            return
        q_x = rows.probability(q_law, x)
        p_x = out[x] if 0 <= x < len(out) and not is_forbidden[c - 1] else 0.0
        if p_x > 0 and q_x > 0:
            accept[c - 1] = 1.0 if p_x >= q_x else p_x / q_x
        subtract_law(out, q_law)
        c = next_sibling[c]
        if c != 0 and not _normalize(out):
            return
