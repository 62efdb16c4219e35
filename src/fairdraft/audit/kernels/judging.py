"""Judges what a row counted, at error rates stated in advance.

FAIL at a false alarm of ALPHA: half of it to Pearson's chi-square over the declared cells, half to
the likelihood ratios against known bugs, which name the bug. PASS is a claim of equivalence: the
upper bound of the total variation, wrong with chance DELTA, is at most the experiment's eps.
Axes: C cells, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fairdraft.audit.kernels.experiment import Experiment
from fairdraft.audit.kernels.trials import Trials
from fairdraft.stats import (
    Distance,
    chi_square_log_survival,
    chi_square_statistic,
    chi_square_threshold,
    measure_distance,
)
from fairdraft.stats.chi_square import MIN_EXPECTED
from fairdraft.stats.coupled import shared_noise_law
from fairdraft.stats.likelihood import STAKES
from fairdraft.stats.mixture import log_mean_exp
from fairdraft.stats.templates import TEMPLATES
from fairdraft.stats.tokens import NO_TOKEN, ScoredTokens, Source
from fairdraft.stats.verdict import VerdictState

__all__ = ["ALPHA", "DELTA", "ChiSquare", "Judgment", "closed_form", "judge", "published_limit"]

ALPHA = 1e-6
DELTA = 0.01


@dataclass(frozen=True)
class ChiSquare:
    """Pearson's test of counts.

    Attributes:
        statistic: Its value; inf if a cell of probability zero was hit.
        df: Degrees of freedom.
        limit: From which it fails, at half of ALPHA.
        log10_p: Of the p-value.
    """

    statistic: float
    df: int
    limit: float
    log10_p: float

    @property
    def is_failed(self) -> bool:
        """Whether the law is refused."""
        return self.statistic >= self.limit


@dataclass(frozen=True)
class Judgment:
    """What the counts of a row say.

    Attributes:
        state: PASS, FAIL, BIASED_WITHIN_TOLERANCE or INCONCLUSIVE.
        diagnosis: The known bug whose law fits best, if the law is refused and one fits.
        distance: Total variation of the tested cells, with bounds.
        chi_square: Over the tested cells; None where a single text is possible.
        wide: Over every single cell, where the tested ones are groups; for show only.
        log10_e: Merged evidence of the known bugs against the target.
    """

    state: VerdictState
    diagnosis: str | None
    distance: Distance
    chi_square: ChiSquare | None
    wide: ChiSquare | None
    log10_e: float


def published_limit(df: int) -> float:
    """Limit of the public test: ten standard deviations above the mean."""
    return df + 10.0 * math.sqrt(2.0 * df)


def judge(experiment: Experiment, trials: Trials) -> Judgment:
    """Judges an experiment's counts."""
    law, counts = experiment.tested_law, trials.counts
    wide = None
    if experiment.partition is not None:
        # shown for what it is, sparse cells and all
        wide = _chi_square(counts, experiment.law, min_expected=0.0)
        counts = experiment.partition.apply(counts)
    distance = measure_distance(counts, law, error=DELTA)
    chi_square = None if experiment.is_exact else _chi_square(counts, law)
    log_e, diagnosis = _known_bugs(experiment, trials)
    is_failed = distance.observed > 0 if chi_square is None else chi_square.is_failed
    is_failed |= log_e >= math.log(2.0 / ALPHA)
    is_failed |= trials.num_impossible > 0
    is_bounded = distance.upper <= experiment.eps and not trials.num_impossible
    if is_failed:
        state = VerdictState.BIASED_WITHIN_TOLERANCE if is_bounded else VerdictState.FAIL
    else:
        state = VerdictState.PASS if is_bounded else VerdictState.INCONCLUSIVE
    return Judgment(
        state=state,
        diagnosis=diagnosis if is_failed else None,
        distance=distance,
        chi_square=chi_square,
        wide=wide,
        log10_e=log_e / math.log(10.0),
    )


def closed_form(experiment: Experiment, trials: Trials) -> ChiSquare | None:
    """Tests first tokens against the exact law of shared draft-residual noise.

    None where that law is the target's own, or there are groups of cells.
    """
    if experiment.partition is not None or experiment.is_exact or experiment.decoding.is_greedy:
        return None
    p, q = experiment.first_law[None], experiment.draft_law[None]
    law = shared_noise_law(p, q, None, experiment.decoding.method)[0]
    return _chi_square(_first_counts(experiment, trials), law / law.sum())


def _first_counts(experiment: Experiment, trials: Trials) -> np.ndarray:
    return trials.counts.reshape(experiment.pair.vocab_size, -1).sum(axis=1)


def _chi_square(
    counts: np.ndarray, law: np.ndarray, min_expected: float = MIN_EXPECTED
) -> ChiSquare:
    df = int((law > 0.0).sum()) - 1
    limit = chi_square_threshold(ALPHA / 2, df)
    if counts[law == 0.0].any():
        return ChiSquare(math.inf, df, limit, -math.inf)
    statistic, df = chi_square_statistic(counts, law, min_expected=min_expected)
    log_p = chi_square_log_survival(statistic, df)
    return ChiSquare(statistic, df, limit, log_p / math.log(10.0))


def _known_bugs(experiment: Experiment, trials: Trials) -> tuple[float, str | None]:
    """Merged log evidence of the first tokens, and the title of the bug that fits best."""
    counts = _first_counts(experiment, trials)
    token = _first_token(experiment)
    logs: dict[str, float] = {}
    for template in TEMPLATES:
        law = template.law(token, experiment.decoding.method)
        if law is not None and not np.isnan(law).any():
            logs[template.title] = _log_evidence(counts, experiment.first_law, law[0])
    if not logs:
        return 0.0, None
    title, best = max(logs.items(), key=lambda item: item[1])
    merged = log_mean_exp(np.array(list(logs.values())))
    return merged, title if best >= math.log(1.0 / ALPHA) else None


def _first_token(experiment: Experiment) -> ScoredTokens:
    """The laws of a first token, as templates take them; which token it was plays no part."""
    decoding = experiment.decoding
    zero = np.zeros(1, np.int64)
    return ScoredTokens(
        column=zero,
        target=experiment.first_law[None],
        ids=None,
        draft=experiment.draft_law[None],
        text=zero,
        position=zero,
        slot=zero,
        source=np.full(1, Source.UNKNOWN, np.int8),
        drafted=np.full(1, -1),
        previous=np.full((1, 2), NO_TOKEN),
        point_mass=np.full(1, decoding.is_greedy or decoding.temperature == 0),
    )


def _log_evidence(counts: np.ndarray, law: np.ndarray, alternative: np.ndarray) -> float:
    possible = law > 0.0
    odds = alternative[possible] / law[possible]
    share = (odds * law[possible]).sum()
    if share < 1e-12:
        # the bug emits nothing that the target does: chi-square sees it at once
        return 0.0
    odds /= share
    with np.errstate(divide="ignore"):
        factors = np.log(1.0 - STAKES[:, None] + STAKES[:, None] * odds)
    seen = counts[possible]
    # a token that the bug never emits counts against it only once it is seen
    with np.errstate(invalid="ignore"):
        logs = np.where(seen > 0, seen * factors, 0.0).sum(axis=1)
    return log_mean_exp(np.maximum(logs, -1e300))
