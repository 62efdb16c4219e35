"""The choice itself: expected tokens a second of each candidate and K, from measured rounds.

A round with K drafts emits 1 + sum over i <= K of the chance that draft i is reached and stands,
which does not depend on K under rules `token` and `common_noise` (under `block` a smaller K accepts
at least what is counted). Chances and costs come from rounds of K = 1 and of the largest K, with a
straight line between the costs (Leviathan et al. 2023, section 3.3, whose formula holds for one
chance at every place).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fairdraft.engine.choice.candidates import Candidate, available, made_at_most, named
from fairdraft.engine.choice.config import AutoConfig
from fairdraft.engine.choice.rounds import (
    RoundLog,
    Trial,
    chances,
    loaded,
    new_trial,
    opening_ids,
)
from fairdraft.engine.config import SpeculativeConfig
from fairdraft.engine.core import Engine
from fairdraft.models import CausalLM

PLAIN = "plain"
#: turns over the trials, so that a drift of the machine meets all of them
_TURNS = 4
#: a speculator has to promise this much over plain decoding, more than what it may be misjudged by
LEAST_GAIN = 1.03
#: speculators that are measured to the end
_FINALISTS = 2


@dataclass(frozen=True)
class Estimate:
    """What is expected of a candidate at its best K.

    Attributes:
        name: Of the candidate.
        num_drafts: K.
        tokens_a_round: The token after the drafts included.
        draft_ms: Drafting, a round.
        draft_step_ms: What one draft more costs in drafting.
        verify_ms: Target, verification and the rest, a round.
        tokens_per_second: Of one request.
    """

    name: str
    num_drafts: int
    tokens_a_round: float
    draft_ms: float
    draft_step_ms: float
    verify_ms: float
    tokens_per_second: float


@dataclass(frozen=True)
class Choice:
    """What was chosen, from what.

    Attributes:
        config: Of the speculator, its model loaded; None for plain decoding.
        pinned: What `speculative_config` gives the same without measuring; None for plain decoding.
        chosen: What is expected of it.
        estimates: Of every candidate, plain decoding included, the best first.
        refused: Candidate to the reason why it cannot be used.
        left: Candidates that were measured for half of the turns alone, less surely.
        temperature: At which acceptance was measured.
        num_rounds: Rounds measured.
        seconds: In all, loading included.
    """

    config: SpeculativeConfig | None
    pinned: dict[str, Any] | None
    chosen: Estimate
    estimates: list[Estimate]
    refused: dict[str, str]
    left: frozenset[str]
    temperature: float
    num_rounds: int
    seconds: float

    def describe(self) -> str:
        """Says in a few lines what was chosen, why, and how to pin it."""
        plain = next(found for found in self.estimates if found.name == PLAIN)
        others = [found for found in self.estimates if found != self.chosen]
        lines = [
            f"chosen: {_said(self.chosen)}, "
            f"{self.chosen.tokens_per_second / plain.tokens_per_second:.2f} times plain decoding: "
            f"{self.chosen.tokens_a_round:.2f} tokens a round of {self.chosen.draft_ms:.2f} ms of "
            f"drafts and {self.chosen.verify_ms:.2f} ms of the rest"
        ]
        if others:
            early = " (by half of the turns)"
            said = "; ".join(_said(f) + early * (f.name in self.left) for f in others)
            lines.append(f"  not chosen: {said}")
        lines += [f"  not usable: {name}: {reason}" for name, reason in self.refused.items()]
        lines.append(
            f"  measured here in {self.seconds:.1f} s, {self.num_rounds} rounds at temperature "
            f"{self.temperature:g}: another machine or load may choose another K, and with it "
            f"other tokens for a key; to pin it: speculative_config={self.pinned!r}"
        )
        return "\n".join(lines)

    def with_cost_ratio(self, config: SpeculativeConfig, ratio: float) -> Choice:
        """The same with what an adaptive speculator's drafts were measured to cost."""
        assert self.pinned is not None
        return replace(self, config=config, pinned={**self.pinned, "adaptive_cost_ratio": ratio})

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for files."""
        return {
            "chosen": asdict(self.chosen),
            "pinned": self.pinned,
            "estimates": [asdict(found) for found in self.estimates],
            "refused": self.refused,
            "left": sorted(self.left),
            "temperature": self.temperature,
            "num_rounds": self.num_rounds,
            "seconds": self.seconds,
        }


@dataclass
class _Entrant:
    """A candidate with its trials at K = 1 and at its largest K."""

    candidate: Candidate
    config: SpeculativeConfig
    trials: list[Trial]


def choose(
    asked: AutoConfig, target: CausalLM, dtype: str | None, max_model_len: int, **engine: Any
) -> Choice:
    """Measures what is available and takes what promises most tokens a second.

    Args:
        asked: From what to choose, and how long to measure.
        target: The loaded target.
        dtype: Of a draft model, as `load_model`.
        max_model_len: Context of the requests.
        **engine: `impl` and `enforce_eager` of the engine to come.

    Raises:
        ValueError: If a candidate that the caller named cannot be used, or a round fails.

    Noise:
        That of requests under keys made of a few fixed prompts and small seeds.
    """
    begin = time.perf_counter()
    engine |= {"max_num_seqs": 1, "max_model_len": max_model_len}
    plain = Trial(Engine(target, None, **engine), 0)
    entrants: list[_Entrant] = []
    refused: dict[str, str] = {}
    for candidate in _candidates(asked, target):
        try:
            named_k = candidate.config.get("num_speculative_tokens")
            most = asked.num_speculative_tokens if named_k is None else named_k
            config = loaded(asked.settled(candidate.config, most), target, dtype)

            def make(count: int, config: SpeculativeConfig = config) -> Trial:
                return new_trial(config, count, target, dtype, engine)

            most, last = made_at_most(candidate.config, make, most)
        except ValueError as error:
            if candidate.is_asked:
                raise
            refused[candidate.name] = str(error)
            continue
        first = [] if most == 1 else [new_trial(config, 1, target, dtype, engine)]
        entrants.append(_Entrant(candidate, config, [*first, last]))
    finalists = _measure(plain, entrants, opening_ids(target, max_model_len), asked)
    estimates = [_estimate(PLAIN, [plain.log], 0), *(_best(entrant) for entrant in entrants)]
    chosen, config, pinned = _fastest(estimates[0], finalists)
    trials = [plain, *(trial for entrant in entrants for trial in entrant.trials)]
    return Choice(
        config=config,
        pinned=pinned,
        chosen=chosen,
        estimates=sorted(estimates, key=lambda found: -found.tokens_per_second),
        refused=refused,
        left=frozenset(e.candidate.name for e in entrants if e not in finalists),
        temperature=asked.temperature,
        num_rounds=sum(len(trial.log.accepted) for trial in trials),
        seconds=time.perf_counter() - begin,
    )


def _candidates(asked: AutoConfig, target: CausalLM) -> list[Candidate]:
    """What the caller named, and unless that was a list, what is at hand; named together."""
    given = asked.asked()
    if asked.candidates is not None:
        return given
    found = available(target)
    together = named(candidate.config for candidate in (*found, *given))
    return [
        replace(candidate, is_asked=place >= len(found)) for place, candidate in enumerate(together)
    ]


def expected(logs: Sequence[RoundLog], num_drafts: int) -> tuple[float, float, float]:
    """Tokens, seconds of drafting and seconds of the rest of a round of K drafts.

    Args:
        logs: At K = 1 and at the largest K, or at the largest alone.
        num_drafts: K.
    """
    tokens, chance = 1.0, 1.0
    for place in chances(logs, logs[-1].most)[:num_drafts]:
        chance *= place
        tokens += chance
    measured = [log.most for log in logs]
    draft, rest = (
        float(np.interp(num_drafts, measured, [log.seconds(part) for log in logs]))
        for part in ("draft", "rest")
    )
    return tokens, draft, rest


def _measure(
    plain: Trial, entrants: list[_Entrant], prompts: list[list[int]], asked: AutoConfig
) -> list[_Entrant]:
    """Runs all trials in turns; after half of them only those of the best go on, and are given."""
    trials = [plain, *(trial for entrant in entrants for trial in entrant.trials)]
    for trial in trials:
        trial.warm_up(prompts[0], asked.temperature)
    begin = time.perf_counter()
    for turn in range(_TURNS):
        if turn == _TURNS // 2:
            for trial in trials:
                trial.check_timed()
            entrants = sorted(entrants, key=lambda e: -_best(e).tokens_per_second)[:_FINALISTS]
            trials = [plain, *(trial for entrant in entrants for trial in entrant.trials)]
        left = asked.budget_seconds - (time.perf_counter() - begin)
        share = left / ((_TURNS - turn) * len(trials))
        for trial in trials if turn % 2 else reversed(trials):
            trial.run(prompts[turn % len(prompts)], asked.temperature, share)
    return entrants


def _best(entrant: _Entrant) -> Estimate:
    logs = [trial.log for trial in entrant.trials]
    of_k = [_estimate(entrant.candidate.name, logs, k) for k in range(1, logs[-1].most + 1)]
    return max(of_k, key=lambda estimate: estimate.tokens_per_second)


def _fastest(
    plain: Estimate, finalists: list[_Entrant]
) -> tuple[Estimate, SpeculativeConfig | None, dict[str, Any] | None]:
    """The best finalist, its configuration and how to ask for it, or plain decoding."""
    found = [(_best(entrant), entrant) for entrant in finalists]
    estimate, entrant = max(
        found, key=lambda pair: pair[0].tokens_per_second, default=(plain, None)
    )
    if entrant is None or estimate.tokens_per_second < LEAST_GAIN * plain.tokens_per_second:
        return plain, None, None
    config = replace(entrant.config, num_speculative_tokens=estimate.num_drafts)
    return estimate, config, _pinned(entrant.candidate, config)


def _pinned(candidate: Candidate, config: SpeculativeConfig) -> dict[str, Any]:
    """The dictionary that asks for a configuration, by the model's name."""
    shared = {
        key: getattr(config, key)
        for key in ("draft_sample_method", "rejection_sample_method")
        if getattr(config, key) != getattr(SpeculativeConfig, key)
    }
    settled = {"method": config.method, "num_speculative_tokens": config.num_speculative_tokens}
    return {**candidate.config, **settled, **shared}


def _estimate(name: str, logs: Sequence[RoundLog], num_drafts: int) -> Estimate:
    tokens, draft, rest = expected(logs, num_drafts)
    step = 0.0
    if len(logs) > 1:
        more = logs[-1].seconds("draft") - logs[0].seconds("draft")
        step = more / (logs[-1].most - logs[0].most)
    return Estimate(
        name=name,
        num_drafts=num_drafts,
        tokens_a_round=tokens,
        draft_ms=1e3 * draft,
        draft_step_ms=1e3 * step,
        verify_ms=1e3 * rest,
        tokens_per_second=tokens / (draft + rest),
    )


def _said(found: Estimate) -> str:
    name = "plain decoding" if found.name == PLAIN else f"{found.name}, K = {found.num_drafts}"
    return f"{name}, {found.tokens_per_second:.0f} tokens/s expected"
