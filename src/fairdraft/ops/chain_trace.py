"""What a trace is told about a verified batch."""

from __future__ import annotations

import numpy as np

from fairdraft.noise import Trace
from fairdraft.noise.trace import digest
from fairdraft.ops.chain_inputs import ChainInputs, ChainOutputs
from fairdraft.ops.rows import RowError


def record(trace: Trace, inputs: ChainInputs, outputs: ChainOutputs) -> None:
    """Records the address of every draw of a batch, with a digest of what was tested or raced."""
    depth = inputs.token_ids.shape[1]
    for b in np.flatnonzero(inputs.target_scale > 0).tolist():
        accepted, is_ended = int(outputs.num_accepted[b]), outputs.error[b] == RowError.NONE
        final = b * (depth + 1)
        if inputs.is_point_mass[b]:
            raced = range(accepted + is_ended)
            parts = [digest(*_raced(inputs, b, r, with_draft=False)) for r in raced]
            trace.record(inputs.final_at[[final + r for r in raced]], parts)
            continue
        # a row that failed drew nothing
        is_rejected = is_ended and accepted < inputs.num_drafts[b]
        tested = range(accepted + is_rejected)
        tests = [(*_raced(inputs, b, r, with_draft=True), inputs.token_ids[b, r]) for r in tested]
        parts = [digest(*test) for test in tests]
        trace.record(inputs.accept_at[[b * depth + r for r in tested]], parts)
        if is_ended:
            part = digest(*_raced(inputs, b, accepted, with_draft=is_rejected))
            trace.record(inputs.final_at[[final + accepted]], [part])


def _raced(inputs: ChainInputs, b: int, r: int, *, with_draft: bool) -> list[np.ndarray]:
    """The numbers that a draw at row r was made from."""
    parts = [inputs.target[b, r], inputs.target_scale[b]]
    if r < inputs.num_drafts[b] and inputs.is_forbidden[b, r]:
        parts.append(inputs.token_ids[b, r])
    if with_draft:
        parts += [inputs.draft[b, r], inputs.draft_scale[b]]
    return parts
