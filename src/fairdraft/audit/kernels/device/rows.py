"""The rows of `fairdraft audit kernels --device`: those of the host's table, and larger ones.

Planned before they run. FAIL at a false alarm of 1e-6 a row, PASS wrong with chance .01; with 2^24
trials the upper bound adds .0004 to the total variation that is measured, so 8 cells are held to
eps = .001 and 64 or more to .002. A planted layout of the large rows is missed with a chance below
1e-6: chi-square alone expects at least ten times its limit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fairdraft.audit.kernels.device.call import NARROW, Call
from fairdraft.audit.kernels.experiment import Experiment
from fairdraft.audit.kernels.naming import REDRAWN, RETESTED
from fairdraft.audit.kernels.rows import COUPLED, P4, P8, PASS, ROWS, Expected, Row
from fairdraft.audit.layouts import LAYOUTS
from fairdraft.audit.subjects.markov import Decoding, MarkovPair
from fairdraft.stats.verdict import VerdictState

__all__ = ["DEVICE_ROWS", "LARGE", "DeviceRow", "device_rows_of"]

LARGE = 1 << 24
#: of the widest rows, which take seconds
WIDE_TRIALS = 10_000_000
#: rows that few kernels decode
_QUICK = (
    *(f"{name} {layout}" for name in ("regression", "large token") for layout in LAYOUTS),
    "large sample fast",
)
#: 8 tokens and, last, the flat tail of a vocabulary
TAILED, TAILED_DRAFT = np.append(0.98 * P8, 0.02), np.append(0.98 * P8[::-1], 0.02)


@dataclass(frozen=True)
class DeviceRow(Row):
    """A row whose texts go through a device's ops.

    Attributes:
        call: How.
    """

    call: Call = Call()

    @property
    def acceptance(self) -> float | None:
        """The chance that a text's first draft is accepted; a point mass must match a draw of p."""
        if self.call.declares_law:
            return self.experiment.acceptance
        return float((self.experiment.first_law * self.experiment.draft_law).sum())

    @property
    def kernels(self) -> tuple[object, ...]:
        """What the kernels of the row are compiled for."""
        decoding = self.experiment.decoding
        has_law = self.call.declares_law and not decoding.is_greedy
        layout = "ours" if self.layout == "independent" else self.layout
        drafts = (decoding.num_drafts, decoding.rule, has_law)
        return (layout, replace(self.call, is_spread=False, has_tail=False), drafts)


def _carried() -> list[DeviceRow]:
    """The host's rows; in one tile the race draws what the flat race draws."""
    rows = []
    for row in ROWS:
        experiment = row.experiment
        decoding = replace(experiment.decoding, method="race")
        width = max(NARROW, experiment.pair.vocab_size)
        rows.append(
            DeviceRow(
                row.name,
                replace(experiment, decoding=decoding),
                row.layout,
                row.expected,
                row.constant_position,
                row.is_quick,
                Call(vocab_size=width),
            )
        )
    return rows


def _table() -> list[DeviceRow]:
    experiment = Experiment(
        "8 tokens in a vocabulary of 32,000, draft ranks them the other way round, K = 1",
        "published: TV .01251 coupled, .00144 salted, .00211 independent",
        MarkovPair.from_laws(P8, P8[::-1]),
        Decoding(1),
        1 << 18,
        0.01,
    )
    call = Call(vocab_size=32_000)
    return [_row(f"32k {name}", experiment, name, call) for name in LAYOUTS]


def _row(name: str, experiment: Experiment, layout: str, call: Call) -> DeviceRow:
    expected = COUPLED if layout == "coupled" else PASS
    return DeviceRow(name, experiment, layout, expected, call=call)


def _sample() -> list[DeviceRow]:
    spread = Call("sample", 1301, is_spread=True)
    calls = {
        "fast": spread,
        "portable": replace(spread, arithmetic="portable"),
        "gumbel": replace(spread, method="gumbel"),
    }
    rows = []
    for name, call in calls.items():
        experiment = Experiment(
            f"ops.sample, {call.method}, {call.arithmetic}: 8 tokens over the 3 tiles of 1,301 ids",
            "no drafts",
            MarkovPair.from_laws(P8, P8[::-1]),
            Decoding(0),
            LARGE,
            0.001,
        )
        rows.append(_row(f"large sample {name}", experiment, "ours", call))
    experiment = Experiment(
        "ops.sample, race, fast: 8 tokens over 200,000 ids, the others a tail of .02",
        "no drafts",
        MarkovPair.from_laws(TAILED, TAILED_DRAFT),
        Decoding(0),
        LARGE,
        0.001,
    )
    call = Call("sample", 200_000, is_spread=True, has_tail=True)
    return [*rows, _row("large sample wide", experiment, "ours", call)]


def _one_token() -> list[DeviceRow]:
    pair = MarkovPair.from_laws(P8, P8[::-1])
    token = Experiment(
        "rule token: 8 tokens, draft ranks them the other way round, K = 1",
        "the first experiment, 64 times as large",
        pair,
        Decoding(1),
        LARGE,
        0.001,
    )
    matched = Experiment(
        "the same, each draft declared a point mass on what was drawn",
        "exact for any draft, and no ACCEPT number is drawn",
        pair,
        Decoding(1),
        LARGE,
        0.001,
    )
    wide = Experiment(
        "rule token: 8 tokens over 200,000 ids, the others a tail of .02, K = 1",
        "residuals of 391 tiles",
        MarkovPair.from_laws(TAILED, TAILED_DRAFT),
        Decoding(1),
        WIDE_TRIALS,
        0.0012,
    )
    hidden = Call(declares_law=False)
    tailed = Call(vocab_size=200_000, is_spread=True, has_tail=True)
    return [
        *(_row(f"large token {name}", token, name, Call()) for name in LAYOUTS),
        _row("large point mass ours", matched, "ours", hidden),
        _row("large token wide", wide, "ours", tailed),
    ]


def _joint() -> list[DeviceRow]:
    pair = MarkovPair.shuffled(P4, P4[::-1], seed=1)
    title = "4 tokens by the last one, K = 3, joint law of 3 tokens: "
    token, block, greedy = (
        Experiment(title + name, remark, pair, decoding, LARGE, 0.002, num_tokens=3)
        for name, remark, decoding in (
            ("rule token", "several rounds, 64 times as large", Decoding(3)),
            ("rule block", "several rounds, 64 times as large", Decoding(3, rule="block")),
            ("greedy drafts", "point masses; sample and match", Decoding(3, is_greedy=True)),
        )
    )
    spread = Experiment(
        "rule token: 8 tokens over the 3 tiles of 1,301 ids, K = 3, joint law of 2 tokens",
        "residuals of several tiles",
        MarkovPair.from_laws(P8, P8[::-1]),
        Decoding(3),
        LARGE,
        0.002,
        num_tokens=2,
    )
    retested = Expected(VerdictState.FAIL, None, RETESTED)
    harmless = Expected(VerdictState.PASS, None, REDRAWN)
    return [
        _row("large rounds ours", token, "ours", Call()),
        _row("large rounds coupled", token, "coupled", Call()),
        DeviceRow("large rounds salted", token, "salted", harmless),
        _row("large block ours", block, "ours", Call()),
        DeviceRow("large block salted", block, "salted", retested),
        _row("large greedy ours", greedy, "ours", Call()),
        _row("large spread ours", spread, "ours", Call(vocab_size=1301, is_spread=True)),
    ]


DEVICE_ROWS: tuple[DeviceRow, ...] = (
    *_carried(),
    *_table(),
    *_sample(),
    *_one_token(),
    *_joint(),
)


def device_rows_of(*, quick: bool) -> tuple[DeviceRow, ...]:
    """All rows, or those of a quick run, which compiles few kernels."""
    return tuple(row for row in DEVICE_ROWS if not quick or row.name in _QUICK)
