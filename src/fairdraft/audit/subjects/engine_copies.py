"""Engines that share the models of another: watched, traced, or without a speculator."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairdraft.engine import LLM, Observer
    from fairdraft.noise import Trace

__all__ = ["observed", "with_trace", "without_speculator"]


@contextmanager
def observed(llm: LLM, observer: Observer) -> Iterator[None]:
    """Shows an engine's rounds to `observer` inside the block."""
    before = llm.engine.observer
    llm.engine.observer = observer
    try:
        yield
    finally:
        llm.engine.observer = before


def with_trace(llm: LLM, trace: Trace, max_model_len: int | None = None) -> LLM:
    """The same models in an engine of its own that records every draw.

    The speculator is shared, so the other engine must be idle.
    """
    return _with_engine(llm, llm.engine.speculator, trace, max_model_len)


def without_speculator(llm: LLM) -> LLM:
    """The same target in an engine that decodes plainly."""
    return _with_engine(llm, None, None, None)


def _with_engine(llm: LLM, speculator: Any, trace: Any, max_model_len: int | None) -> LLM:
    from fairdraft.engine.assembly import new_engine

    assert not llm.engine.has_work, "an engine at work shares its speculator's rows with nobody"
    other = copy.copy(llm)
    other.max_model_len = max_model_len or llm.max_model_len
    other.engine = new_engine(
        llm.config,
        llm.target,
        speculator,
        max_num_seqs=llm.engine.rows.max_rows,
        max_model_len=other.max_model_len,
        trace=trace,
        impl=llm.engine.impl,
        enforce_eager=llm.engine.enforce_eager,
        logprobs_mode=llm.engine.logprobs_mode,
    )
    return other
