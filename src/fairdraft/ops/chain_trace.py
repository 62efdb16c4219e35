"""What a trace is told about a verified batch."""

from __future__ import annotations

import numpy as np

from fairdraft.noise import Trace
from fairdraft.noise.trace import digest
from fairdraft.ops.chain_inputs import ChainInputs, ChainOutputs
from fairdraft.ops.rows import RowError


def record(
    trace: Trace, inputs: ChainInputs, outputs: ChainOutputs, num_tested: np.ndarray | None = None
) -> None:
    """Records the address of every draw of a batch, with a digest of what was tested or raced.

    Args:
        trace: Where to.
        inputs: What was verified.
        outputs: What came out.
        num_tested: Longest prefixes tested by rule `block` [B]; None for rule `token`.
    """
    depth = inputs.token_ids.shape[1]
    for b in np.flatnonzero(inputs.target_scale > 0).tolist():
        accepted, is_ended = int(outputs.num_accepted[b]), outputs.error[b] == RowError.NONE
        final = b * (depth + 1)
        if inputs.is_point_mass[b]:
            raced = range(accepted + is_ended)
            parts = [digest(*_raced(inputs, b, r, with_draft=False)) for r in raced]
            trace.record(inputs.final_at[[final + r for r in raced]], parts)
            continue
        if num_tested is not None:
            if is_ended:
                _record_block(trace, inputs, b, accepted, int(num_tested[b]))
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


def _record_block(trace: Trace, inputs: ChainInputs, b: int, accepted: int, tested: int) -> None:
    """The tests of prefixes, from the longest back to the one that stood, and the last token."""
    depth, count = inputs.token_ids.shape[1], int(inputs.num_drafts[b])

    def along(r: int) -> bytes:
        # a test or a residual depends on the whole path to it
        rows = [_raced(inputs, b, i, with_draft=i < count) for i in range(r + 1)]
        return digest(*(part for row in rows for part in row), inputs.token_ids[b, :r])

    lengths = range(max(accepted, 1), tested + 1)
    tests = [b * depth + r - 1 for r in lengths]
    trace.record(inputs.accept_at[tests], [along(r) for r in lengths])
    is_bonus = accepted == count
    part = digest(*_raced(inputs, b, count, with_draft=False)) if is_bonus else along(accepted)
    trace.record(inputs.final_at[[b * (depth + 1) + accepted]], [part])


def _raced(inputs: ChainInputs, b: int, r: int, *, with_draft: bool) -> list[np.ndarray]:
    """The numbers that a draw at row r was made from."""
    parts = [inputs.target[b, r], inputs.target_scale[b]]
    if r < inputs.num_drafts[b] and inputs.is_forbidden[b, r]:
        parts.append(inputs.token_ids[b, r])
    if with_draft:
        parts += [inputs.draft[b, r], inputs.draft_scale[b]]
    return parts
