"""What the engine itself costs: the wall time of a round less the time inside the networks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from subjects import Job, our_params
from timing import Spread, spread

from fairdraft import LLM
from fairdraft.models import CausalLM
from fairdraft.speculators import DraftModelSpeculator


def round_costs(llm: LLM, job: Job) -> dict[str, Spread]:
    """Times each round of a job; the first round, which prefills, and the last are left out.

    Returns:
        `round_ms`, `forward_ms` (inside the networks' forward, cache writes included) and
        `own_ms`, their difference.
    """
    models = [llm.target]
    if isinstance(llm.speculator, DraftModelSpeculator):
        models.append(llm.speculator.model)
    params = our_params(job)
    rounds: list[float] = []
    forwards: list[float] = []
    with _timed(models) as meter:
        # a stream event follows each round; its cost is the caller's and is not counted
        step = llm.engine.step

        def timed_step() -> Any:
            meter.seconds, begin = 0.0, time.perf_counter()
            ended = step()
            rounds.append(time.perf_counter() - begin)
            forwards.append(meter.seconds)
            return ended

        llm.engine.step = timed_step
        try:
            llm.generate([{"prompt_token_ids": ids} for ids in job.prompts], params)
        finally:
            del llm.engine.step
    rounds, forwards = rounds[1:-1] or rounds, forwards[1:-1] or forwards
    own = [a - b for a, b in zip(rounds, forwards, strict=True)]
    parts = {"round_ms": rounds, "forward_ms": forwards, "own_ms": own}
    return {name: spread([1e3 * x for x in values]) for name, values in parts.items()}


class _Meter:
    seconds = 0.0


@contextmanager
def _timed(models: list[CausalLM]) -> Iterator[_Meter]:
    """Adds up the time inside whatever computes the networks of the given models."""
    meter = _Meter()

    def wrap(forward: Any) -> Any:
        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            try:
                return forward(*args, **kwargs)
            finally:
                meter.seconds += time.perf_counter() - begin

        return timed

    places: list[tuple[Any, str]] = [
        (lm.model, "forward") if lm.direct is None else (lm, "direct") for lm in models
    ]
    originals = [getattr(owner, name) for owner, name in places]
    for (owner, name), forward in zip(places, originals, strict=True):
        setattr(owner, name, wrap(forward))
    try:
        yield meter
    finally:
        for (owner, name), forward in zip(places, originals, strict=True):
            setattr(owner, name, forward)
