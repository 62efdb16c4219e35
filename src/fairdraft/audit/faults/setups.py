"""The decoders that faults are planted in: Markov tables through the ops, and the engine.

The tables are narrow and adversarial, so that little is needed to see much; texts of one setup and
seed are the same for every fault. Axes: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from fairdraft.audit.subject import Subject

if TYPE_CHECKING:
    from fairdraft.engine import LLM

__all__ = ["SETUPS", "Setup"]

#: texts of different seeds have different requests
_SEED_BITS = 22
_MAX_SEED = (1 << 62) - 1


@dataclass(frozen=True)
class Setup:
    """One decoder with its parameters.

    Attributes:
        name: Short and unique.
        title: What it is, for people.
        is_engine: Whether the engine runs, on the embedded models.
        tokens_per_second: About, on one core; for the time left.
        build: From the first seed to the subject.
    """

    name: str
    title: str
    is_engine: bool
    tokens_per_second: float
    build: Callable[[int], Subject] = field(repr=False)

    def subject(self, seed: int) -> Subject:
        """The decoder; requests of different seeds share nothing."""
        return self.build(seed << _SEED_BITS & _MAX_SEED)


def _reversed_pair() -> Any:
    """Eight tokens, q in the reverse order of p, shuffled by the last token: sum min(p, q) = .5."""
    from fairdraft.audit.subjects.markov import MarkovPair

    p = np.array([0.30, 0.20, 0.15, 0.10, 0.10, 0.05, 0.05, 0.05])
    return MarkovPair.shuffled(p, p[::-1], seed=1)


def _masked_pair() -> Any:
    """Eight tokens, three of which the target excludes and the draft likes."""
    from fairdraft.audit.subjects.markov import MarkovPair

    p = np.array([0.35, 0.25, 0.20, 0.10, 0.10, 0.00, 0.00, 0.00])
    q = np.array([0.05, 0.05, 0.05, 0.10, 0.15, 0.20, 0.20, 0.20])
    return MarkovPair.shuffled(p, q, seed=2)


def _binary_pair() -> Any:
    """Two tokens without context: paths whose ratio exceeds 1 and falls again are common."""
    from fairdraft.audit.subjects.markov import MarkovPair

    return MarkovPair.from_laws([0.7, 0.3], [0.3, 0.7])


def _wide_pair() -> Any:
    """256 tokens, p as 1 / rank and q as its root: most of the mass is in rare tokens."""
    from fairdraft.audit.subjects.markov import MarkovPair

    p = 1.0 / np.arange(1, 257)
    q = np.sqrt(p)
    return MarkovPair.shuffled(p / p.sum(), q / q.sum(), seed=3)


def _toy(
    name: str,
    title: str,
    speed: float,
    pair: Callable[[], Any],
    *,
    num_drafts: int = 3,
    subject: dict[str, Any] | None = None,
    **decoding: Any,
) -> Setup:
    def build(seed: int) -> Subject:
        from fairdraft.audit.subjects.markov import Decoding
        from fairdraft.audit.subjects.toy import ToySubject

        options = {"texts_per_batch": 64, **(subject or {})}
        return ToySubject(
            pair(), Decoding(num_drafts, **decoding), seed=seed, name=title, **options
        )

    return Setup(name, title, False, speed, build)


def _forbidding_pair() -> Any:
    """Two even tokens, and two that the target forbids: dropping these gives .65 in place of .5."""
    from fairdraft.audit.subjects.markov import MarkovPair

    return MarkovPair.from_laws([0.5, 0.5, 0.0, 0.0], [0.4, 0.1, 0.25, 0.25])


def _tested_pair() -> Any:
    """Four tokens, one of which q likes too much: siblings are often rejected, and tested."""
    from fairdraft.audit.subjects.markov import MarkovPair

    return MarkovPair.shuffled([0.11, 0.27, 0.37, 0.25], [0.07, 0.06, 0.26, 0.61], seed=4)


#: ids of four words of the embedded tokenizer: " the", " a", " and", ","
_WORDS = (263, 259, 282, 12)


@cache
def _pocket(rule: str, processes_drafts: bool) -> LLM:
    from fairdraft.engine import LLM

    config = {"model": "pocket-draft", "num_speculative_tokens": 3, "rule": rule}
    return LLM("pocket", speculative_config=config | {"process_draft_logits": processes_drafts})


def _engine(
    name: str,
    title: str,
    *,
    num_tokens: int = 32,
    rule: str = "token",
    is_defined: bool = False,
    **params: Any,
) -> Setup:
    """The embedded pair; `is_defined` scores it by the definitions of its processors."""

    def build(seed: int) -> Subject:
        from fairdraft.audit.faults.defined import DefinedSubject
        from fairdraft.audit.subjects.engine import EngineSubject
        from fairdraft.engine import SamplingParams

        new_subject = DefinedSubject if is_defined else EngineSubject
        return new_subject(
            _pocket(rule, is_defined),
            params=SamplingParams(seed=seed, ignore_eos=True, **params),
            num_requests=512 // num_tokens,
            num_tokens=num_tokens,
            max_columns=128,
            name=title,
        )

    return Setup(name, title, True, 700.0, build)


_SLOW = {"texts_per_batch": 4}

_ALL = (
    _toy("toy", "8 tokens, q reversed, K = 3", 2e4, _reversed_pair),
    _toy(
        "toy-prompts",
        "8 tokens, q reversed, K = 3, one seed for three prompts",
        2e4,
        _reversed_pair,
        subject={"prompts": ((0, 0, 0, 0, 0), (0, 1, 0, 1, 1), (0, 0, 2, 2, 2))},
    ),
    _toy(
        "toy-counted",
        "8 tokens, q reversed, K = 3, seeds count up",
        2e4,
        _reversed_pair,
        subject={"has_plain_keys": True},
    ),
    _toy(
        "toy-greedy", "8 tokens, the best token drafted, K = 3", 2e4, _reversed_pair, is_greedy=True
    ),
    _toy("toy-top-k", "8 tokens, q reversed, K = 3, top-k 3", 2e4, _reversed_pair, top_k=3),
    _toy("toy-top-p", "8 tokens, q reversed, K = 3, top-p .8", 2e4, _reversed_pair, top_p=0.8),
    _toy("toy-min-p", "8 tokens, q reversed, K = 3, min-p .25", 2e4, _reversed_pair, min_p=0.25),
    _toy(
        "toy-block",
        "8 tokens, q reversed, K = 6, rule block",
        1e4,
        _reversed_pair,
        num_drafts=6,
        rule="block",
        subject={"length": 24},
    ),
    _toy(
        "toy-common",
        "8 tokens, q reversed, K = 3, rule common_noise",
        2e4,
        _reversed_pair,
        rule="common_noise",
    ),
    _toy(
        "toy-reference",
        "8 tokens, q reversed, K = 2, the readable walk",
        150.0,
        _reversed_pair,
        num_drafts=2,
        impl="reference",
        subject=_SLOW,
    ),
    _toy(
        "toy-block-reference",
        "2 tokens, q reversed, K = 3, rule block, the readable walk",
        150.0,
        _binary_pair,
        num_drafts=3,
        rule="block",
        impl="reference",
        subject=_SLOW,
    ),
    _toy(
        "toy-masked-reference",
        "8 tokens, p excludes three, K = 1, the readable walk",
        150.0,
        _masked_pair,
        num_drafts=1,
        impl="reference",
        subject=_SLOW,
    ),
    _toy(
        "toy-wide-reference",
        "256 tokens of 1 / rank, K = 1, the readable walk",
        100.0,
        _wide_pair,
        num_drafts=1,
        impl="reference",
        subject=_SLOW,
    ),
    _toy(
        "toy-forbidding",
        "4 tokens, p even on two and the others marked as forbidden, K = 1",
        2e4,
        _forbidding_pair,
        num_drafts=1,
        forbids=True,
    ),
    _toy(
        "toy-tree",
        "4 tokens, q likes one, trees of two siblings below two",
        1e4,
        _tested_pair,
        num_drafts=2,
        rule="tree",
        breadths=(2, 2),
    ),
    _toy(
        "toy-tree-reference",
        "4 tokens, q likes one, two siblings, the readable walk",
        150.0,
        _tested_pair,
        num_drafts=1,
        rule="tree",
        breadths=(2,),
        impl="reference",
        subject=_SLOW,
    ),
    _engine("pocket", "engine, pocket pair, K = 3"),
    _engine("pocket-short", "engine, pocket pair, K = 3, texts of 8 tokens", num_tokens=8),
    _engine("pocket-cool", "engine, pocket pair, K = 3, temperature .7", temperature=0.7),
    _engine("pocket-top-k", "engine, pocket pair, K = 3, top-k 5", top_k=5),
    _engine("pocket-common", "engine, pocket pair, K = 3, rule common_noise", rule="common_noise"),
    _engine(
        "pocket-penalized",
        "engine, pocket pair, K = 3, four allowed words, frequency penalty 2, scored by definition",
        is_defined=True,
        allowed_token_ids=list(_WORDS),
        frequency_penalty=2.0,
    ),
    _engine(
        "pocket-biased",
        "engine, pocket pair, K = 3, four allowed words, logit bias, scored by definition",
        is_defined=True,
        allowed_token_ids=list(_WORDS),
        logit_bias={_WORDS[0]: 3.0},
    ),
)

#: by name
SETUPS = {setup.name: setup for setup in _ALL}
