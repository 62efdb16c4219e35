"""What the rows show together: the published observations, each with its numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from fairdraft.audit.kernels.judging import ChiSquare, published_limit
from fairdraft.audit.kernels.result import RowResult

__all__ = ["Claim", "claims_of"]


@dataclass(frozen=True)
class Claim:
    """One observation.

    Attributes:
        sentence: It, with the measured numbers.
        holds: Whether the numbers bear it out.
    """

    sentence: str
    holds: bool


def claims_of(results: Iterable[RowResult]) -> list[Claim]:
    """The observations whose rows are among the results."""
    named = {result.row.name: result for result in results}
    made = [_closed_form(list(named.values())), _narrow(named), _probe(named), _wide(named)]
    return [claim for claim in made if claim is not None]


def _closed_form(results: list[RowResult]) -> Claim | None:
    fits = [result.fit for result in results if result.fit is not None]
    if not fits:
        return None
    worst = max(fits, key=lambda fit: -fit.log10_p)
    return Claim(
        f"the first tokens of all {len(fits)} rows of shared noise follow the closed form of "
        f"docs/the-bug.md; the worst chi-square is {worst.statistic:.1f} on {worst.df} degrees of "
        f"freedom (p = {10.0**worst.log10_p:.2g})",
        not any(fit.is_failed for fit in fits),
    )


def _narrow(named: dict[str, RowResult]) -> Claim | None:
    coupled, salted = (_chi_square(named.get(f"narrow K=1 {x}")) for x in ("coupled", "salted"))
    if coupled is None or salted is None:
        return None
    limit = published_limit(coupled.df)
    return Claim(
        f"the public limit of {limit:.0f} parts them: chi-square {coupled.statistic:,.0f} coupled, "
        f"{salted.statistic:.1f} salted",
        salted.statistic < limit < coupled.statistic,
    )


def _chi_square(result: RowResult | None) -> ChiSquare | None:
    return None if result is None else result.judgment.chi_square


def _probe(named: dict[str, RowResult]) -> Claim | None:
    pair = [named.get(f"probe {layout}") for layout in ("coupled", "salted")]
    if pair[0] is None or pair[1] is None:
        return None
    coupled, salted = pair[0].acceptance, pair[1].acceptance
    limit = 4.0 * math.hypot(coupled.standard_error, salted.standard_error)
    difference = abs(coupled.share - salted.share)
    return Claim(
        f"acceptance does not show the bug: {coupled.share:.4f} coupled and {salted.share:.4f} "
        f"salted differ by {difference:.5f}, less than four standard errors ({limit:.5f})",
        difference < limit,
    )


def _wide(named: dict[str, RowResult]) -> Claim | None:
    result = named.get("wide coupled")
    if result is None or result.judgment.wide is None or result.judgment.chi_square is None:
        return None
    wide, grouped = result.judgment.wide, result.judgment.chi_square
    limit = published_limit(wide.df)
    return Claim(
        f"a test of all {wide.df + 1:,} tokens passes on the broken code: chi-square "
        f"{wide.statistic:,.0f} below {limit:,.0f}; eight cells by q/p refuse the same samples: "
        f"{grouped.statistic:.0f} above {grouped.limit:.0f}",
        wide.statistic < limit and grouped.is_failed,
    )
