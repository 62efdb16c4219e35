"""Faults of rows: the right rule on the wrong row of logits. They change the rule's inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fairdraft.audit.faults.fault import Fault, Function, Planting

__all__ = ["ROW_FAULTS"]


def _changed(change: Callable[[Any], dict[str, np.ndarray]]) -> Any:
    """Rows of some rounds replaced; rounds without drafts are left alone."""

    def make(original: Function, planting: Planting) -> Function:
        def chain_inputs(*args: Any) -> Any:
            inputs = original(*args)
            if not inputs.token_ids.shape[1] or not len(inputs.draft):
                return inputs
            return inputs._replace(**change(inputs))

        return chain_inputs

    return make


def _last(inputs: Any) -> tuple[np.ndarray, np.ndarray]:
    """Rounds that have drafts, and the row after their last one."""
    rounds = np.flatnonzero(inputs.num_drafts)
    return rounds, inputs.num_drafts[rounds]


def _bonus_from_draft(inputs: Any) -> dict[str, np.ndarray]:
    target = inputs.target.copy()
    rounds, last = _last(inputs)
    target[rounds, last] = inputs.draft[rounds, last - 1]
    return {"target": target}


def _bonus_from_row_before(inputs: Any) -> dict[str, np.ndarray]:
    target = inputs.target.copy()
    rounds, last = _last(inputs)
    target[rounds, last] = inputs.target[rounds, last - 1]
    return {"target": target}


def _stale(inputs: Any) -> dict[str, np.ndarray]:
    first = inputs.target[:, :1]
    return {"target": np.ascontiguousarray(np.broadcast_to(first, inputs.target.shape))}


def _next_row(inputs: Any) -> dict[str, np.ndarray]:
    target = inputs.target.copy()
    rounds, last = _last(inputs)
    for row in range(inputs.target.shape[1] - 1):
        is_later = row < last
        target[rounds[is_later], row] = inputs.target[rounds[is_later], row + 1]
    return {"target": target}


def _neighbors_q(inputs: Any) -> dict[str, np.ndarray]:
    draft = inputs.draft.copy()
    # an odd row of the batch is read from the row before it, where that has as many drafts
    row = np.arange(1, len(draft), 2)
    row = row[inputs.num_drafts[row - 1] >= inputs.num_drafts[row]]
    draft[row] = inputs.draft[row - 1]
    return {"draft": draft}


def _fault(name: str, title: str, change: Any, source: str = "") -> Fault:
    return Fault(name, title, "fairdraft.ops.verify._chain_inputs", _changed(change), "row", source)


ROW_FAULTS = (
    _fault(
        "bonus-from-draft",
        "the bonus token is sampled from the draft's last row",
        _bonus_from_draft,
        "transformers #47912",
    ),
    _fault(
        "bonus-from-row-before",
        "the bonus token is sampled from the target's row before the last draft",
        _bonus_from_row_before,
    ),
    _fault(
        "stale-rows",
        "later rows are the first one's, as if the drafted path had not been read",
        _stale,
    ),
    _fault(
        "row-off-by-one",
        "a draft is tested against the target's row after it",
        _next_row,
        "vllm #6285",
    ),
    _fault(
        "neighbors-q",
        "q of every second row of the batch is its neighbor's, as after a padded write",
        _neighbors_q,
        "vllm #47066",
    ),
)
