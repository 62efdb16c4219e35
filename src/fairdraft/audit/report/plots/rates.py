"""Observed shares beside expected ones: acceptance by slot, agreement by lag."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fairdraft.audit.report.document import Report
from fairdraft.audit.report.findings import Z_99
from fairdraft.audit.report.plots.canvas import BAD, GOOD, MUTED, canvas
from fairdraft.audit.report.plots.plot import Plot

HEIGHT = 230


@dataclass(frozen=True)
class _Rate:
    label: str
    observed: float
    expected: float
    half: float

    @property
    def stands_out(self) -> bool:
        return abs(self.observed - self.expected) > self.half


def acceptance_plot(report: Report) -> Plot:
    """Draws the share of drafts that stood at each slot beside the mean of sum min(p, q)."""
    name, title = "acceptance", "Acceptance against Σ min(p, q), by slot"
    rates = [_rate(str(s.slot), s.tested, s.accepted, s.expected) for s in report.slots if s.tested]
    if not rates:
        return Plot(name, title, "", missing=_no_slots(report))
    reading = (
        "A right verifier accepts a draft with chance Σ min(p, q). Coupled noise leaves this "
        f"number alone, so agreement here proves little. {_outside(rates, 'slot')}"
    )
    svg = _draw(name, title, reading, rates, "slot", "share accepted", from_zero=False)
    return Plot(name, title, reading, svg)


def agreement_plot(report: Report) -> Plot:
    """Draws how often a token equals the other text's, beside what the target expects."""
    name, title = "agreement", "Agreement between requests, by lag"
    rows = sorted((row for row in report.agreement if row.pairs), key=lambda row: row.lag)
    if not rows:
        why = "No two texts were compared: fewer than two were scored."
        return Plot(name, title, "", missing=why)
    rates = [_rate(f"{r.lag:+d}" if r.lag else "0", r.pairs, r.observed, r.expected) for r in rows]
    reading = (
        "How often a token equals the one that the text before has at the same position, one "
        "later, or one earlier. Requests that share noise agree too often. "
        f"{_outside(rates, 'lag')}"
    )
    svg = _draw(name, title, reading, rates, "lag in positions", "share equal", from_zero=True)
    return Plot(name, title, reading, svg)


def _rate(label: str, trials: int, hits: int, expected: float) -> _Rate:
    mean = min(max(expected / trials, 0.0), 1.0)
    half = Z_99 * math.sqrt(max(mean * (1.0 - mean), 1e-12) / trials)
    return _Rate(label, hits / trials, mean, half)


def _no_slots(report: Report) -> str:
    if not report.subject.is_speculative and report.subject.kind != "endpoint":
        return "Plain decoding tests no drafts."
    return "Which drafts were tested, or their probabilities, is not known."


def _outside(rates: Sequence[_Rate], noun: str) -> str:
    names = [rate.label for rate in rates if rate.stands_out]
    if not names:
        return f"Every {noun} is inside its 99% interval."
    return f"Outside the 99% interval: {noun} {', '.join(names)}."


def _draw(
    name: str, title: str, reading: str, rates: Sequence[_Rate], x: str, y: str, *, from_zero: bool
) -> str:
    with canvas(name, HEIGHT) as drawing:
        axes = drawing.axes
        for place, rate in enumerate(rates):
            axes.plot(
                [place - 0.28, place + 0.28],
                [rate.expected] * 2,
                color=MUTED,
                linewidth=2.2,
                label="expected" if place == 0 else None,
            )
            color, marker = (BAD, "D") if rate.stands_out else (GOOD, "o")
            axes.errorbar(
                [place],
                [rate.observed],
                yerr=[rate.half],
                fmt=marker,
                color=color,
                markersize=6.5,
                elinewidth=2,
                capsize=4,
                label="observed, 99%" if place == 0 else None,
            )
        axes.set_xlim(-0.6, len(rates) - 0.4)
        axes.set_xticks(range(len(rates)), [rate.label for rate in rates])
        low = min(min(r.observed - r.half, r.expected) for r in rates)
        high = max(max(r.observed + r.half, r.expected) for r in rates)
        room = max(0.35 * (high - low), 0.01)
        axes.set_ylim(0.0 if from_zero else max(0.0, low - room), min(1.02, high + room))
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.grid(axis="y")
        axes.tick_params(length=0)
        axes.locator_params(axis="y", nbins=5)
        drawing.legend()
        return drawing.svg(title, reading)
