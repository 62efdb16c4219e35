"""Rounds of one speculator at one K, timed and counted one by one.

Axes: K drafts, N rounds.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fairdraft.engine.core import Engine
from fairdraft.engine.params import SamplingParams
from fairdraft.engine.request import Request
from fairdraft.noise import request_key

#: rounds' worth of the overall chance that each place begins with
_PULL = 8.0


@dataclass
class RoundLog:
    """What rounds took and gave.

    Attributes:
        most: K, which rounds of drafts without laws may stay below.
        draft: Seconds in the speculator [N].
        rest: Seconds of the target, verification, commit and bookkeeping [N].
        num_drafts: Drafts verified [N].
        accepted: Of every round, first ones of a request included: drafts that stood.
    """

    most: int
    draft: list[float] = field(default_factory=list)
    rest: list[float] = field(default_factory=list)
    num_drafts: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def seconds(self, part: str) -> float:
        """Typical seconds a round of "draft" or "rest".

        The mean over rounds of the lower quartile among those with as many drafts: neighbors on the
        machine only add time, and rare long blocks weigh what they should.
        """
        groups: dict[int, list[float]] = defaultdict(list)
        for count, value in zip(self.num_drafts, getattr(self, part), strict=True):
            groups[count].append(value)
        total = sum(len(values) * np.quantile(values, 0.25) for values in groups.values())
        return float(total) / max(len(self.num_drafts), 1)


def chances(logs: Sequence[RoundLog], most: int) -> list[float]:
    """Chance that draft 1, 2, .. is there and stands, given that the one before it stood [K].

    Late places are reached seldom, so each is drawn to the chance over all of them.

    Args:
        logs: Of one speculator, each at a K of its own.
        most: The largest K.
    """
    reached = np.zeros(most)
    stood = np.zeros(most)
    for log in logs:
        accepted = np.array(log.accepted, np.int64)
        for place in range(log.most):
            reached[place] += (accepted >= place).sum()
            stood[place] += (accepted > place).sum()
    overall = stood.sum() / max(reached.sum(), 1.0)
    return ((stood + _PULL * overall) / (reached + _PULL)).tolist()


class Trial:
    """An engine of one row that exists to be timed.

    Attributes:
        log: Its rounds so far, at one K.
        num_requests: Requests so far, each under a key of its own.
    """

    def __init__(self, engine: Engine, num_drafts: int) -> None:
        self.engine = engine
        self.log = RoundLog(num_drafts)
        self.num_requests = 0

    def run(
        self, prompt: Sequence[int], temperature: float, seconds: float, *, least: int = 3
    ) -> float:
        """Continues a prompt for a while; returns how long it took.

        A request's first round, which fills caches, is counted and not timed.

        Args:
            prompt: Token ids.
            temperature: 0 is greedy.
            seconds: After which no round is begun.
            least: Rounds that are run whatever they take.
        """
        seed, self.num_requests = self.num_requests, self.num_requests + 1
        params = SamplingParams(
            temperature=temperature, max_tokens=None, ignore_eos=True, seed=seed
        )
        ids = list(prompt)
        request = Request(f"trial-{seed}", None, ids, params, request_key(seed, ids))
        begin = time.perf_counter()
        self.engine.add(request)
        done = 0
        while request.num_unfinished and (done < least or time.perf_counter() - begin < seconds):
            self._round(request, is_timed=done > 0)
            done += 1
        if request.num_unfinished:
            self.engine.abort(request.request_id)
        if request.error is not None:
            raise ValueError(f"a round that was to be timed failed: {request.error}")
        return time.perf_counter() - begin

    def _round(self, request: Request, *, is_timed: bool) -> None:
        drafted, accepted = self._counts(request)
        before, begin = self.engine.clock, time.perf_counter()
        self.engine.step()
        seconds = time.perf_counter() - begin
        draft = self.engine.clock.draft - before.draft
        # a round at the end of the context has less room than a round has
        if not request.num_unfinished:
            return
        now_drafted, now_accepted = self._counts(request)
        self.log.accepted.append(now_accepted - accepted)
        if is_timed:
            self.log.num_drafts.append(now_drafted - drafted)
            self.log.draft.append(draft)
            self.log.rest.append(seconds - draft)

    def _counts(self, request: Request) -> tuple[int, int]:
        row = request.sequences[0].row
        if row < 0:
            return 0, 0
        record = self.engine.rows.records[row]
        return int(record["drafted"].sum()), int(record["accepted"].sum())
