"""Rounds of one speculator at one K, timed and counted one by one.

Axes: K drafts, N rounds.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fairdraft.engine.assembly import new_engine
from fairdraft.engine.choice.prompts import PROMPTS
from fairdraft.engine.config import SpeculativeConfig
from fairdraft.engine.core import Engine
from fairdraft.engine.params import SamplingParams
from fairdraft.engine.prompts import read_prompt
from fairdraft.engine.request import Request
from fairdraft.engine.speculation import load_once, new_speculator
from fairdraft.models import CausalLM
from fairdraft.noise import request_key

#: rounds' worth of the overall chance that each place begins with
_PULL = 8.0
_NUM_PROMPTS = 4


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


def loaded(config: SpeculativeConfig, target: CausalLM, dtype: str | None) -> SpeculativeConfig:
    """The configuration with its draft model loaded, so that all trials share it."""
    if config.method != "draft_model":
        return config
    draft = load_once(config.model, config.tokenizer, dtype, str(target.device), "draft")
    return replace(config, model=draft, tokenizer=None)


def new_trial(
    config: SpeculativeConfig,
    num_drafts: int,
    target: CausalLM,
    dtype: str | None,
    engine: dict[str, Any],
) -> Trial:
    """An engine of one row with a configuration's speculator at one K.

    Args:
        config: The speculator, see `loaded`.
        num_drafts: K.
        target: What it drafts for.
        dtype: Of a draft model that is not loaded yet.
        engine: Options of `new_engine`.

    Raises:
        ValueError: If the speculator cannot be used, or not with this K.
    """
    config = replace(
        config, num_speculative_tokens=num_drafts, adaptive=False, adaptive_cost_ratio=None
    )
    speculator = new_speculator(config, target, dtype, str(target.device))
    return Trial(new_engine(config, target, speculator, **engine), num_drafts)


def opening_ids(target: CausalLM, max_model_len: int) -> list[list[int]]:
    """A few built-in openings as ids; of a target without a tokenizer, a few ids."""
    if target.tokenizer is None:
        step = max(target.vocab_size // 8, 1)
        texts = [[(i + place * step) % target.vocab_size for place in range(4)] for i in range(4)]
    else:
        texts = [
            read_prompt(text, "built-in prompt", target, target.max_model_len)[1]
            for text in PROMPTS[:_NUM_PROMPTS]
        ]
    return [ids[: max(max_model_len // 2, 1)] for ids in texts]


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

    def warm_up(self, prompt: Sequence[int], temperature: float) -> None:
        """Runs a few rounds that count for nothing: on first use something may be compiled."""
        self.run(prompt, temperature, 0.0)
        self.log = RoundLog(self.log.most)

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

    def check_timed(self) -> None:
        """Refuses to say anything where no request lasted for a round that could be timed.

        Raises:
            ValueError: If there was none.
        """
        if not self.log.draft:
            raise ValueError(
                f"max_model_len={self.engine.rows.max_model_len}: no room for rounds that could be "
                "timed; name a method, or adaptive_cost_ratio for an adaptive one"
            )

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
