"""What a trace is told about a verified batch of trees."""

from __future__ import annotations

import numpy as np

from fairdraft.noise import Trace
from fairdraft.noise.trace import digest
from fairdraft.ops.rows import RowError
from fairdraft.ops.tree_inputs import TreeInputs, TreeOutputs


def record_tree(trace: Trace, inputs: TreeInputs, outputs: TreeOutputs) -> None:
    """Records the address of every draw of a batch, with a digest of what was tested or raced."""
    num_rows = inputs.target.shape[1]
    for b in np.flatnonzero(inputs.target_scale > 0).tolist():
        accepted, is_ended = int(outputs.num_accepted[b]), outputs.error[b] == RowError.NONE
        path = outputs.path[b, : accepted + 1].tolist()
        if inputs.is_matched[b]:
            raced = path if is_ended else path[:-1]
            parts = [digest(inputs.target[b, r], inputs.target_scale[b]) for r in raced]
            trace.record(inputs.final_at[[b * num_rows + r for r in raced]], parts)
            continue
        tested = np.flatnonzero(outputs.is_tested[b]) + 1
        tests = [digest(*_tested(inputs, b, int(c))) for c in tested]
        trace.record(inputs.accept_at[(b * (num_rows - 1) + tested - 1).tolist()], tests)
        if is_ended:
            last = path[-1]
            rejected = [int(c) for c in tested if inputs.shape.parents[b, c - 1] == last]
            # what is left depends on every sibling that was rejected
            parts = _tested(inputs, b, rejected[-1]) if rejected else _raced(inputs, b, last)
            trace.record(inputs.final_at[[b * num_rows + last]], [digest(*parts)])


def _raced(inputs: TreeInputs, b: int, r: int) -> list[np.ndarray]:
    return [inputs.target[b, r], inputs.target_scale[b]]


def _tested(inputs: TreeInputs, b: int, c: int) -> list[np.ndarray]:
    """The numbers that decide on a node: its parent's row, and its group up to itself."""
    parent = int(inputs.shape.parents[b, c - 1])
    group = [s for s in inputs.shape.children(b, parent) if s <= c]
    parts = [*_raced(inputs, b, parent), inputs.draft_scale[b]]
    for s in group:
        parts += [inputs.draft[b, s - 1], inputs.token_ids[b, s - 1]]
    return parts
