"""Rounds through the production ops: drafts by the shared sampler, then `ops.verify_chain`.

Axes: N trials, K drafts, S states (1: no context; V: the last token), V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fairdraft import ops
from fairdraft.noise import Stream, Trace
from fairdraft.ops import Verdict
from fairdraft.ops.dispatch import Impl
from fairdraft.ops.sample import Method
from fairdraft.ops.verify import AnyRule
from fairdraft.speculators import CommonSampler, Drawn, SharedSampler
from tests.law.tables import log

#: decided tokens before the first round
PROMPT = 5
#: two disjoint ranges of keys; a trial's key is its seed
SEEDS = (0, 1 << 40)


@dataclass
class Setup:
    """A drafter on a target, both tables of logits by the last token.

    Attributes:
        p, q: Target and draft laws [S, V].
        num_drafts: K.
        temperature: Of the request, so of target and draft.
        top_k: Filter of the request, 0 for none.
        is_ragged: Trial b drafts b mod (K + 1) tokens.
        is_greedy: Drafts are the draft's best tokens: point masses.
        rule: Verification rule.
        method: How every token is drawn.
        impl: Implementation that verifies; drafts are always drawn by the fast one.
        trace: Records every draw, or None.
    """

    p: np.ndarray
    q: np.ndarray
    num_drafts: int
    temperature: float = 1.0
    top_k: int = 0
    is_ragged: bool = False
    is_greedy: bool = False
    rule: AnyRule = "token"
    method: Method = "race"
    impl: Impl = "cpu"
    trace: Trace | None = None

    def __post_init__(self) -> None:
        self.p, self.q = np.atleast_2d(self.p), np.atleast_2d(self.q)

    @property
    def vocab_size(self) -> int:
        return self.p.shape[1]

    def counts(self, num_trials: int) -> np.ndarray:
        """Drafts of each trial [N]."""
        if not self.is_ragged:
            return np.full(num_trials, self.num_drafts)
        return np.arange(num_trials) % (self.num_drafts + 1)


def keys_from(seed: int, num_trials: int) -> np.ndarray:
    """One request key a trial."""
    return np.arange(seed, seed + num_trials, dtype=np.uint64)


def run_round(
    setup: Setup, keys: np.ndarray, last: np.ndarray, anchor: np.ndarray, sample: Any = 0
) -> Verdict:
    """One round of every trial: [last token] to accepted drafts and one token more."""
    num_trials = len(keys)
    counts = setup.counts(num_trials)
    sampler = _sampler(setup, keys, anchor, np.broadcast_to(sample, (num_trials,)))
    p = torch.from_numpy(log(setup.p))
    q = torch.from_numpy(log(setup.q))
    contexts = torch.from_numpy(np.tile(last[:, None], (1, setup.num_drafts + 1)))
    drafts = torch.full((num_trials, setup.num_drafts), -1)
    laws = torch.zeros((num_trials, setup.num_drafts, setup.vocab_size))
    for step in range(1, setup.num_drafts + 1):
        rows = np.flatnonzero(counts >= step)
        at = torch.from_numpy(rows)
        drawn = sampler.draw(
            q[_state(setup.q, contexts[at, step - 1])], step, rows, greedy=setup.is_greedy
        )
        drafts[at, step - 1] = drawn.token_ids
        contexts[at, step] = drawn.token_ids
        if isinstance(drawn, Drawn):
            laws[at, step - 1] = drawn.logits
    target = p[_state(setup.p, contexts)]
    if setup.top_k:
        flat = target.flatten(0, 1)
        kept = ops.filter_logits(flat, temperature=setup.temperature, top_k=setup.top_k)
        target = kept.view_as(target)
    given = (target, drafts, torch.from_numpy(counts))
    options: dict[str, Any] = {
        "key": keys,
        "anchor": anchor,
        "sample": sample,
        "temperature": setup.temperature,
        "method": setup.method,
        "impl": setup.impl,
        "trace": setup.trace,
    }
    if setup.rule == "common_noise":
        return ops.verify_chain(*given, draft_logits=None, rule="common_noise", **options)
    point_mass = torch.full((num_trials,), setup.is_greedy)
    return ops.verify_chain(
        *given, draft_logits=laws, point_mass=point_mass, rule=setup.rule, **options
    )


def first_round(setup: Setup, seed: int, num_trials: int, sample: Any = 0) -> Verdict:
    """The first round of `num_trials` trials, after a token 0."""
    last = np.zeros(num_trials, np.int64)
    anchor = np.full(num_trials, PROMPT)
    return run_round(setup, keys_from(seed, num_trials), last, anchor, sample)


def play(
    setup: Setup, seed: int, num_trials: int, length: int
) -> Iterator[tuple[np.ndarray, np.ndarray, Verdict]]:
    """Rounds until every trial has `length` tokens.

    Yields:
        The trials that take part, how many tokens each had before, and what the round gave them.
    """
    keys = keys_from(seed, num_trials)
    last = np.zeros(num_trials, np.int64)
    done = np.zeros(num_trials, np.int64)
    while True:
        rows = np.flatnonzero(done < length)
        if not len(rows):
            return
        verdict = run_round(setup, keys[rows], last[rows], PROMPT + done[rows])
        assert not verdict.error.any()
        yield rows, done[rows], verdict
        emitted = verdict.num_emitted_tokens.numpy()
        last[rows] = verdict.token_ids.numpy()[np.arange(len(rows)), emitted - 1]
        done[rows] += emitted


def generate(setup: Setup, seed: int, num_trials: int, length: int) -> np.ndarray:
    """The first tokens of every trial: token_ids [N, length]."""
    tokens = np.zeros((num_trials, length + setup.num_drafts + 1), np.int64)
    columns = np.arange(setup.num_drafts + 1)
    for rows, begin, verdict in play(setup, seed, num_trials, length):
        row, column = np.nonzero(columns < verdict.num_emitted_tokens.numpy()[:, None])
        tokens[rows[row], begin[row] + column] = verdict.token_ids.numpy()[row, column]
    return tokens[:, :length]


def after_replacements(setup: Setup, seed: int, num_trials: int, length: int) -> np.ndarray:
    """The tokens that came right after a replaced draft, all trials together [N]."""
    was_replaced = np.zeros(num_trials, bool)
    found = []
    for rows, _, verdict in play(setup, seed, num_trials, length):
        found.append(verdict.token_ids.numpy()[was_replaced[rows], 0])
        was_replaced[rows] = verdict.last_stream.numpy() == Stream.RESIDUAL
    return np.concatenate(found)


def _state(table: np.ndarray, context: torch.Tensor) -> torch.Tensor:
    return context if len(table) > 1 else torch.zeros_like(context)


def _sampler(
    setup: Setup, keys: np.ndarray, anchor: np.ndarray, sample: np.ndarray
) -> SharedSampler | CommonSampler:
    shape = len(keys)
    new_sampler = CommonSampler if setup.rule == "common_noise" else SharedSampler
    return new_sampler(
        key=keys,
        sample=sample,
        anchor=anchor,
        temperature=np.full(shape, setup.temperature),
        top_k=np.full(shape, setup.top_k),
        top_p=np.ones(shape),
        min_p=np.zeros(shape),
        filtered=np.full(shape, setup.top_k > 0),
        num_steps=setup.num_drafts,
        impl="cpu",
        method=setup.method,
        trace=setup.trace,
    )
