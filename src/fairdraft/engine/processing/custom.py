"""Custom processors: functions of the path, called for each row that is read.

Axes: R rows, L tokens, V vocabulary.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fairdraft.ops.processors import DraftedPaths


class LogitsProcessor(Protocol):
    """A custom processor; called like one of Hugging Face, which may be passed as it is.

    The result must follow from the arguments alone. A call is made for every row that may be read,
    rows after drafts that are rejected later among them, so what a processor remembered between
    calls would hold tokens that were never emitted.

    A processor with an attribute `depends_on_history = False` treats each row alone and is called
    once for all rows of a round, with no tokens, [R, 0]. Without the attribute it is taken to
    depend on history.
    """

    def __call__(self, input_ids: Tensor, scores: Tensor, /) -> Tensor:
        """Changes the logits of rows.

        Args:
            input_ids: Prompt, output and the drafts before the row [1, L], int64.
            scores: Logits, processed by everything before [1, V], float32; a copy.

        Returns:
            Logits of the same shape, -inf for what may not follow.
        """
        ...


def depends_on_history(processor: Any) -> bool:
    """Whether a processor must be called row by row, along the drafted path."""
    return bool(getattr(processor, "depends_on_history", True))


def name_of(processor: Any) -> str:
    """What messages call a processor."""
    return getattr(processor, "__name__", type(processor).__name__)


def apply_custom(
    logits: Tensor, paths: DraftedPaths, sequence: int, processors: tuple[Any, ...]
) -> dict[int, str]:
    """Applies one request's custom processors in their order, in place.

    Args:
        logits: Floating point [B, R, V].
        paths: Of the round.
        sequence: Which of the paths.
        processors: Of the request.

    Returns:
        Rows that could not be processed, and why: a processor raised, or its result has another
        shape, NaN or +inf. They and the rows below them are left half processed.
    """
    rows = logits[int(paths.index[sequence])]
    nothing = torch.zeros((len(rows), 0), dtype=torch.int64, device=logits.device)
    is_left = paths.is_read[sequence].copy()
    failed: dict[int, str] = {}
    for processor in processors:
        reads_path = depends_on_history(processor)
        if not reads_path:
            left = torch.from_numpy(np.flatnonzero(is_left)).to(logits.device)
            result = _call(processor, nothing[: len(left)], rows[left])
            if isinstance(result, Tensor):
                rows[left] = result
                continue
        # after a failure too, so that it counts for the row that is at fault
        for row in np.flatnonzero(is_left).tolist():
            if not is_left[row]:
                continue
            tokens = nothing[:1]
            if reads_path:
                tokens = torch.from_numpy(paths.before(sequence, row)[None]).to(logits.device)
            result = _call(processor, tokens, rows[row : row + 1])
            if isinstance(result, Tensor):
                rows[row] = result[0]
                continue
            failed[row] = f"logits processor {name_of(processor)} failed: {result}"
            is_left &= ~paths.tree.below([row])
    return failed


def _call(processor: Any, tokens: Tensor, before: Tensor) -> Tensor | str:
    """A processor's logits, or what is wrong with them."""
    try:
        result = processor(tokens, before.clone())
    except Exception as error:
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    if not isinstance(result, Tensor) or result.shape != before.shape:
        shape = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
        return f"it returned {shape} in place of {tuple(before.shape)}"
    # a NaN or +inf anywhere is the row's maximum; what the model could not compute is its error
    is_bad = _has_no_law(result) & ~_has_no_law(before)
    return "it returned NaN or +inf" if is_bad.any() else result


def _has_no_law(rows: Tensor) -> Tensor:
    top = rows.amax(dim=1)
    return torch.isnan(top) | torch.isposinf(top)
