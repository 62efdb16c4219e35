"""Faults of processors: temperature and filters that do not reach the rows they should."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fairdraft.audit.faults.fault import Fault, Function, Planting

__all__ = ["PROCESSOR_FAULTS"]

FILTER = "fairdraft.ops.filter_logits"
SCALES = "fairdraft.ops.verify._chain_inputs"


def _scaled(change: Callable[[np.ndarray], np.ndarray]) -> Any:
    """Another scale log2(e) / T of the target's rows; greedy rows, of scale 0, stay."""

    def make(original: Function, planting: Planting) -> Function:
        def chain_inputs(*args: Any) -> Any:
            inputs = original(*args)
            scale = np.where(inputs.target_scale > 0, change(inputs.target_scale), 0)
            return inputs._replace(target_scale=scale.astype(np.float32))

        return chain_inputs

    return make


_LOG2_E = float(np.log2(np.e))


def _filtered(**changed: Callable[[Any], Any]) -> Any:
    """Other parameters of the filters, for target and draft alike."""

    def make(original: Function, planting: Planting) -> Function:
        def filter_logits(logits: Any, **params: Any) -> Any:
            for name, change in changed.items():
                params[name] = change(params[name])
            return original(logits, **params)

        return filter_logits

    return make


def _without_drafts(original: Function, planting: Planting) -> Function:
    def occurrences(paths: Any, **options: Any) -> Any:
        is_read = paths.is_read & (np.arange(paths.width) < 1)
        return original(replace(paths, is_read=is_read), **options)

    return occurrences


def _unbiased_bonus(original: Function, planting: Planting) -> Function:
    """The bias, but in the last row of a round."""

    def add_bias(logits: Any, *args: Any) -> None:
        last = logits[:, -1].clone()
        original(logits, *args)
        if logits.shape[1] > 1:
            logits[:, -1] = last

    return add_bias


PROCESSOR_FAULTS = (
    Fault(
        "penalties-once-a-round",
        "penalties count what is decided when the round begins, and no draft of it",
        "fairdraft.ops.processors.DraftedPaths.occurrences",
        _without_drafts,
        "processor",
    ),
    Fault(
        "unbiased-bonus",
        "a logit bias applies to the rows that test drafts, and not to the row of the bonus",
        "fairdraft.ops.processors.add_bias",
        _unbiased_bonus,
        "processor",
    ),
    Fault(
        "warm-target",
        "the target's rows are read at 1.05 times the temperature",
        SCALES,
        _scaled(lambda scale: scale / 1.05),
        "processor",
    ),
    Fault(
        "temperature-dropped",
        "the target's rows are read at temperature 1, whatever the request asked for",
        SCALES,
        _scaled(lambda scale: np.full_like(scale, _LOG2_E)),
        "processor",
        "lattice #974",
    ),
    Fault(
        "temperature-twice",
        "the temperature is applied to the target's rows twice",
        SCALES,
        _scaled(lambda scale: scale * scale / _LOG2_E),
        "processor",
    ),
    Fault(
        "top-p-dropped",
        "top-p is read and not applied",
        FILTER,
        _filtered(top_p=lambda values: None),
        "processor",
        "dflash #77",
    ),
    Fault(
        "min-p-dropped",
        "min-p is read and not applied",
        FILTER,
        _filtered(min_p=lambda values: None),
        "processor",
    ),
    Fault(
        "top-k-plus-one",
        "rows keep one token more than top-k",
        FILTER,
        _filtered(top_k=lambda values: values + 1),
        "processor",
    ),
)
