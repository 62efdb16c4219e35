"""The rows of `fairdraft audit kernels`: experiments, layouts, and what each must come to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from fairdraft.audit.kernels.experiment import Experiment
from fairdraft.audit.kernels.naming import REDRAWN, RETESTED, SHARED, STEPS
from fairdraft.audit.layouts import LAYOUTS, Layout, independent
from fairdraft.audit.subjects.markov import Decoding, MarkovPair
from fairdraft.stats.verdict import VerdictState

__all__ = ["ROWS", "Expected", "Row", "rows_of"]

P8 = np.array([0.30, 0.20, 0.15, 0.10, 0.10, 0.05, 0.05, 0.05])
#: sum min(p, q) = .107 against its reverse, as in the published probe
PROBE = np.array([0.50, 0.25, 0.13, 0.0665, 0.0265, 0.015, 0.008, 0.004])
P4 = np.array([0.4, 0.3, 0.2, 0.1])

K1 = Decoding(1, method="gumbel")
K3 = Decoding(3, method="gumbel")
BLOCK = Decoding(3, rule="block", method="gumbel")


@dataclass(frozen=True)
class Expected:
    """What a row must come to.

    Attributes:
        state: The verdict.
        diagnosis: The bug that the law test names, or None.
        traced: The bug that the trace names first, or None: the trace is clean.
    """

    state: VerdictState
    diagnosis: str | None = None
    traced: str | None = None


@dataclass(frozen=True)
class Row:
    """One experiment under one layout.

    Attributes:
        name: Unique.
        experiment: What is decoded.
        layout: "coupled", "salted", "independent" or "ours".
        expected: What it must come to.
        constant_position: The drafter draws a whole proposal at the anchor's position.
        is_quick: Also run when time is short.
    """

    name: str
    experiment: Experiment
    layout: str
    expected: Expected
    constant_position: bool = False
    is_quick: bool = True

    def maker(self, key: int) -> Callable[..., Layout]:
        """What makes the layout for trials from `key` on; takes `trace`."""
        make = LAYOUTS[self.layout]
        if make is independent:
            # a running counter does not look at requests, so its own key sets rows and seeds apart
            return partial(make, key=key)
        return partial(make, constant_position=True) if self.constant_position else make


PASS = Expected(VerdictState.PASS)
COUPLED = Expected(VerdictState.FAIL, SHARED, SHARED)


def _normal_logits(vocab_size: int, seed: int) -> MarkovPair:
    logits = np.random.default_rng(seed).standard_normal(vocab_size)
    return MarkovPair(logits, -logits)


def _eight(decoding: Decoding, title: str, published: str, num_trials: int, eps: float):
    pair = MarkovPair.from_laws(P8, P8[::-1])
    return Experiment(title, published, pair, decoding, num_trials, eps)


def _one_round() -> list[Row]:
    marginal = _eight(
        K1,
        "8 tokens, draft ranks them the other way round, K = 1",
        "published: TV .01251 coupled, .00144 salted, .00211 independent",
        1 << 18,
        0.01,
    )
    greedy = _eight(
        Decoding(1, is_greedy=True, method="gumbel"),
        "the same with greedy drafts",
        "published: unaffected, since a greedy draft consumes no noise",
        1 << 18,
        0.01,
    )
    frozen = _eight(
        Decoding(1, temperature=0.0, method="gumbel"),
        "the same at temperature 0",
        "published: unaffected; one text is possible, any other one would FAIL",
        1 << 16,
        0.01,
    )
    regression = _eight(
        K1,
        "the same as a regression test of 65,536 samples",
        "published: TV .01399 coupled, below .008 salted",
        1 << 16,
        0.014,
    )
    return [
        Row("marginal coupled", marginal, "coupled", COUPLED),
        Row("marginal salted", marginal, "salted", PASS),
        Row("marginal independent", marginal, "independent", PASS),
        Row("marginal ours", marginal, "ours", PASS),
        Row("greedy coupled", greedy, "coupled", PASS),
        Row("temperature 0 coupled", frozen, "coupled", PASS),
        Row("regression coupled", regression, "coupled", COUPLED),
        Row("regression salted", regression, "salted", PASS),
        Row("regression independent", regression, "independent", PASS),
        Row("regression ours", regression, "ours", PASS),
    ]


def _narrow() -> list[Row]:
    rows = []
    for decoding in (K1, K3):
        depth = decoding.num_drafts
        experiment = Experiment(
            f"16 tokens, normal logits (NumPy seed 1), draft = -target, K = {depth}, first token",
            "published: chi-square about 1,500 coupled, about 12 salted, limit about 70",
            _normal_logits(16, 1),
            decoding,
            200_000,
            0.01,
        )
        for layout in LAYOUTS:
            expected = COUPLED if layout == "coupled" else PASS
            rows.append(Row(f"narrow K={depth} {layout}", experiment, layout, expected))
    for seed in (0, 2, 3):
        experiment = Experiment(
            f"16 tokens, logits of NumPy seed {seed}, K = 1",
            "the size of the effect depends on the logits",
            _normal_logits(16, seed),
            K1,
            200_000,
            0.01,
        )
        rows.append(Row(f"narrow seed {seed} coupled", experiment, "coupled", COUPLED))
    return rows


def _wide() -> list[Row]:
    experiment = Experiment(
        "4,096 tokens, normal logits (NumPy seed 0), draft = -target, 10 samples a token, K = 1",
        "published: a test of all tokens passes on the broken code; here 8 cells by q/p judge",
        _normal_logits(4096, 0),
        K1,
        40_960,
        0.025,
        num_groups=8,
        chunk=512,
    )
    return [
        Row("wide coupled", experiment, "coupled", COUPLED, is_quick=False),
        Row("wide ours", experiment, "ours", PASS, is_quick=False),
    ]


def _probe() -> list[Row]:
    experiment = Experiment(
        "acceptance probe, 8 tokens, K = 1",
        "published: acceptance .1068 coupled, .1071 salted",
        MarkovPair.from_laws(PROBE, PROBE[::-1]),
        K1,
        2_000_000,
        0.003,
    )
    return [
        Row(f"probe {layout}", experiment, layout, expected, is_quick=False)
        for layout, expected in (("coupled", COUPLED), ("salted", PASS), ("ours", PASS))
    ]


def _several_rounds() -> list[Row]:
    pair = MarkovPair.shuffled(P4, P4[::-1], seed=1)
    title = "several rounds, 4 tokens by the last one, K = 3, joint law of 3 tokens: rule "
    token = Experiment(
        title + "token",
        "positions are proposed again after a rejection; without bias by proof",
        pair,
        K3,
        1 << 18,
        0.015,
        num_tokens=3,
    )
    constant = Experiment(
        title.replace("rule ", "drafts at one position"),
        "published: said to be below the noise floor; no test of K = 1 can see it",
        pair,
        K3,
        1 << 18,
        0.015,
        num_tokens=3,
    )
    block = Experiment(
        title + "block",
        "a block test reads the numbers of drafts that it then drops",
        pair,
        BLOCK,
        1 << 18,
        0.015,
        num_tokens=3,
    )
    fail = VerdictState.FAIL
    harmless = Expected(VerdictState.PASS, None, REDRAWN)
    return [
        Row("rounds coupled", token, "coupled", COUPLED),
        Row("rounds salted", token, "salted", harmless),
        Row("rounds independent", token, "independent", PASS),
        Row("rounds ours", token, "ours", PASS),
        Row("constant salted", constant, "salted", Expected(fail, None, STEPS), True),
        Row("constant ours", constant, "ours", PASS, True),
        Row("block salted", block, "salted", Expected(fail, None, RETESTED)),
        Row("block independent", block, "independent", PASS),
        Row("block ours", block, "ours", PASS),
    ]


ROWS: tuple[Row, ...] = (
    *_one_round(),
    *_narrow(),
    *_wide(),
    *_probe(),
    *_several_rounds(),
)


def rows_of(*, quick: bool) -> tuple[Row, ...]:
    """All rows, or those of a quick run."""
    return tuple(row for row in ROWS if row.is_quick or not quick)
