"""What is read off a report: numbers in words, intervals that hold, and advice for every bug."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fairdraft.audit.report import coverage
from fairdraft.audit.report.advice import FAMILY_STEPS, TEMPLATE_STEPS, next_steps
from fairdraft.audit.report.answers import verdict_sentence
from fairdraft.audit.report.findings import (
    cell_ratios,
    crossing,
    kind_of,
    ranked_cells,
    ranked_templates,
)
from fairdraft.audit.report.wording import (
    chance,
    distance,
    duration,
    grouped,
    odds,
    power_of_ten,
    short_count,
)
from fairdraft.stats import binomial_log_tails
from fairdraft.stats.families import FAMILIES
from fairdraft.stats.summary import HeatSummary
from fairdraft.stats.templates import TEMPLATES
from tests.audit.reports import report_of

FALSE_ALARM = math.log(1e-9)
NUM_SLOTS, NUM_OCTILES, NUM_TOKENS = 8_000, 8, 1_600


def intervals_missed(drift: float) -> int:
    """How many of the 99% intervals of a large heat map miss the ratio 1.

    Args:
        drift: Added to the true probability of the first cell of a slot, taken off its last.
    """
    rng = np.random.default_rng(7)
    law = np.full(NUM_OCTILES, 1.0 / NUM_OCTILES)
    ends = np.eye(NUM_OCTILES)[0] - np.eye(NUM_OCTILES)[-1]
    counts = rng.multinomial(NUM_TOKENS, law + drift * ends, size=NUM_SLOTS)
    heat = HeatSummary(
        slots=tuple(map(str, range(NUM_SLOTS))),
        octiles=tuple(map(str, range(NUM_OCTILES))),
        observed=tuple(map(tuple, counts.tolist())),
        expected=(tuple((NUM_TOKENS * law).tolist()),) * NUM_SLOTS,
    )
    table = cell_ratios(replace(report_of("empty"), heat=heat))
    return sum(not cell.lower <= 1.0 <= cell.upper for row in table for cell in row if cell)


def test_cell_intervals_hold_and_see_a_planted_shift() -> None:
    """At most 1.2% miss, false alarm 1e-9; a shift of .02 puts about 10% outside, miss < 1e-9."""
    trials = NUM_SLOTS * NUM_OCTILES
    assert binomial_log_tails(intervals_missed(0.0), trials, 0.012)[1] > FALSE_ALARM
    assert binomial_log_tails(intervals_missed(0.02), trials, 0.012)[1] < FALSE_ALARM


def test_cells_of_few_tokens_have_no_ratio() -> None:
    heat = HeatSummary(("0",), ("a", "b"), ((1, 99),), ((4.9, 95.1),))
    report = replace(report_of("empty"), heat=heat)
    ((few, known),) = cell_ratios(report)
    assert few is None and known is not None and known.ratio == pytest.approx(99 / 95.1)
    assert ranked_cells(report) == [known]


def test_crossing_is_the_first_at_the_line() -> None:
    report = replace(report_of("empty"), curve=((10, 2.9), (20, 3.0), (30, 1.0), (40, 5.0)))
    assert crossing(report) == 20
    assert crossing(replace(report, curve=((10, 2.9),))) is None


def test_templates_that_never_bet_come_last() -> None:
    ranked = ranked_templates(report_of("FAIL"))
    bets = [template.log10_e for template in ranked if template.num_tokens]
    assert bets == sorted(bets, reverse=True) and bets
    idle = [template.num_tokens == 0 for template in ranked]
    assert idle == sorted(idle) and any(idle)


def test_kind_by_the_interval() -> None:
    family = replace(report_of("FAIL").families[0], lower=0.02, upper=0.05)
    assert [kind_of(family, eps) for eps in (0.01, 0.03, 0.05)] == ["beyond", "open", "within"]


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.name)
def test_every_known_bug_has_a_next_step(template: object) -> None:
    name, title = template.name, template.title  # type: ignore[attr-defined]
    assert name in TEMPLATE_STEPS
    report = report_of("FAIL")
    report = replace(report, verdict=replace(report.verdict, diagnosis=title))
    assert TEMPLATE_STEPS[name] in next_steps(report)


def test_every_family_has_a_next_step() -> None:
    words = [word for word, _ in FAMILY_STEPS]
    assert all(any(w in f.name for w in words) for f in FAMILIES)


def test_coverage_names_every_family_once() -> None:
    report = report_of("plain")
    lines = " ".join([*coverage.tested(report), *coverage.untested(report)])
    for family in report.families:
        assert family.name in lines
    judged = " ".join(coverage.tested(report))
    assert "5 declared families" in judged and "q/p octile" not in judged
    # greedy or plain, PASS or not: the limits are always told
    assert "cancel inside every declared cell" in lines and "eps = 0.01" in lines


def test_sentence_has_no_name_and_grouped_counts() -> None:
    report = report_of("INCONCLUSIVE")
    assert report.verdict.sentence.startswith("INCONCLUSIVE: the bound")
    assert verdict_sentence(report).startswith("The bound of slot x q/p is")
    assert f"about {report.verdict.needed_tokens:,} tokens" in verdict_sentence(report)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (short_count(999), "999"),
        (short_count(12_345), "12.3k"),
        (short_count(4.2e6), "4.2M"),
        (distance(None), "–"),
        (distance(0.01234), "0.0123"),
        (power_of_ten(3.0), "10^3"),
        (power_of_ten(-0.44), "10^-0.4"),
        (power_of_ten(math.inf), "∞"),
        (odds(-0.5), "none"),
        (odds(3.21), "10^3.2 : 1"),
        (chance(0.0), "always possible"),
        (chance(1.5), "in at most 3.2% of the runs"),
        (chance(3.0), "in at most 1 of 1,000 runs"),
        (chance(3.61), "in at most 1 of 4,000 runs"),
        (chance(28.76), "in at most 1 of 10^28.7 runs"),
        (chance(math.inf), "never"),
        (duration(4.21), "4.2 s"),
        (duration(200), "3 min 20 s"),
        (duration(7_500), "2 h 5 min"),
        (grouped("n=65536 tokens, id 12345"), "n=65,536 tokens, id 12345"),
    ],
)
def test_numbers_in_words(shown: str, expected: str) -> None:
    assert shown == expected
