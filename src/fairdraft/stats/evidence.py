"""Evidence about a stream of scored tokens: every family, every template, and their merge.

Tokens are taken in pieces, a sixteenth of what was seen before but 64 to 1,024 tokens: bets on a
piece rest on earlier pieces only, and where a piece ends depends on counts alone.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np

from fairdraft.stats.families import FAMILIES, Cells, Family
from fairdraft.stats.intake import SUM_TOLERANCE, Intake, take_in
from fairdraft.stats.judgment import judge
from fairdraft.stats.likelihood import LikelihoodProcess, likelihood_ratios
from fairdraft.stats.merge import Merge
from fairdraft.stats.settings import EvidenceSettings
from fairdraft.stats.summarize import summarize
from fairdraft.stats.summary import EvidenceSummary
from fairdraft.stats.tables import PositionTable, SlotTable
from fairdraft.stats.templates import TEMPLATES
from fairdraft.stats.tilt import TiltProcess
from fairdraft.stats.tokens import ScoredTokens
from fairdraft.stats.verdict import Verdict
from fairdraft.stats.view import LastText, View

__all__ = ["IMPOSSIBLE", "Evidence", "EvidenceSettings"]

#: the process that counts tokens of probability zero
IMPOSSIBLE = "impossible token"
#: families whose cells are followed by position, the first that has tokens is shown
POSITION_FAMILIES = ("q/p octile", "rank")
MIN_PIECE, MAX_PIECE = 64, 1024
MAX_CURVE = 400
_STATE_VERSION = 1
# how much more often than tolerated impossible tokens are bet to come
_IMPOSSIBLE_ODDS = 30.0


class Evidence:
    """Gathers evidence and judges it; may be stopped, saved and resumed at any time.

    Args:
        settings: Limits and error rates.

    Attributes:
        settings: The same.
        num_tokens: Tokens seen.
        num_texts: Texts they came from.
        num_impossible: Tokens to which the target gave probability 0.
        excluded: Sentence on the first token that the target excludes, or None.
        curve: (tokens, log10 merged evidence) after some pieces, thinned as it grows.
        tilts: Process of each family that the rule allows.
        bets: Process of each template, and of impossible tokens.
    """

    def __init__(self, settings: EvidenceSettings | None = None) -> None:
        self.settings = settings or EvidenceSettings()
        self.num_tokens = self.num_texts = self.num_impossible = 0
        self.excluded: str | None = None
        self.curve: list[tuple[int, float]] = []
        eps0 = self.settings.eps0
        self.tilts = {
            family.name: TiltProcess(family.num_cells, eps0) for family in self.families()
        }
        names = [*(template.name for template in TEMPLATES), IMPOSSIBLE]
        self.bets = {name: LikelihoodProcess() for name in names}
        self.merge = Merge()
        self.slots = SlotTable()
        widths = {family.name: family.num_cells for family in FAMILIES}
        self.positions = {name: PositionTable(widths[name]) for name in POSITION_FAMILIES}
        self._last: LastText | None = None
        self._summary: EvidenceSummary | None = None
        self._verdict: Verdict | None = None

    @property
    def log10_e(self) -> float:
        """Merged evidence against the target, log10."""
        return self.merge.log_e / math.log(10.0)

    @property
    def sup_log10_e(self) -> float:
        """The most that the merged evidence ever was, log10."""
        return self.merge.sup_log_e / math.log(10.0)

    def families(self) -> tuple[Family, ...]:
        """The families whose cells' probabilities hold under the rule."""
        rule = self.settings.rule
        return tuple(family for family in FAMILIES if not family.rules or rule in family.rules)

    def add(self, tokens: ScoredTokens) -> None:
        """Adds whole texts.

        Args:
            tokens: Not compacted; texts are numbered on from those before.

        Raises:
            ValueError: If a law is none (see `intake.take_in`), or a text came before.
        """
        if not len(tokens):
            return
        self._summary = self._verdict = None
        if (np.diff(tokens.text) < 0).any():
            raise ValueError("text numbers fall within a batch; give texts in order")
        if self._last is not None and tokens.text[0] <= self._last.text:
            raise ValueError(
                f"text {int(tokens.text[0])} comes after text {self._last.text}; give whole "
                "texts, numbered on over all batches"
            )
        intake = take_in(tokens)
        self._note_excluded(tokens, intake)
        view = View(intake.tokens, self._last)
        cells = {family.name: family.cells(view) for family in self.families()}
        ratios = self._ratios(intake)
        self.slots.add(view)
        for name, table in self.positions.items():
            found = cells[name]
            if found is not None:
                table.add(found, tokens.position)
        self._last = view.last_text()
        self.num_texts += len(np.unique(tokens.text))
        done = 0
        while done < len(tokens):
            size = min(max(self.num_tokens // 16, MIN_PIECE), MAX_PIECE)
            until = min(done + size, len(tokens))
            self._add_piece(cells, ratios, done, until)
            done = until

    def _note_excluded(self, tokens: ScoredTokens, intake: Intake) -> None:
        impossible = intake.is_impossible
        self.num_impossible += int(impossible.sum())
        certain = impossible & intake.is_listed
        if self.excluded is None and self.settings.eps0 == 0.0 and certain.any():
            at = int(certain.argmax())
            self.excluded = (
                f"token {int(tokens.position[at])} of text {int(tokens.text[at])} "
                f"(id {int(tokens.token_id[at])}) has probability 0 under the target"
            )

    def _ratios(self, intake: Intake) -> dict[str, np.ndarray]:
        """Likelihood ratios [N] of every template that bets, NaN where it does not."""
        tokens, eps0 = intake.tokens, self.settings.eps0
        tolerance = max(eps0, SUM_TOLERANCE)
        wager = min(0.5, _IMPOSSIBLE_ODDS * tolerance)
        won, lost = wager / tolerance, (1.0 - wager) / (1.0 - tolerance)
        ratios = {IMPOSSIBLE: np.where(intake.is_impossible, won, lost)}
        for template in TEMPLATES:
            law = template.law(tokens, self.settings.sampler)
            if law is None:
                continue
            rows = np.flatnonzero(~np.isnan(law[:, 0]))
            if not len(rows):
                continue
            target, bet = tokens.target, law
            if len(rows) < len(tokens):
                target, bet = target[rows], law[rows]
            ratio = np.full(len(tokens), np.nan)
            ratio[rows] = likelihood_ratios(tokens.column[rows], target, bet, eps0)
            ratios[template.name] = ratio
        return ratios

    def _add_piece(
        self,
        cells: dict[str, Cells | None],
        ratios: dict[str, np.ndarray],
        first: int,
        until: int,
    ) -> None:
        for name, found in cells.items():
            if found is None:
                continue
            begin, end = np.searchsorted(found.rows, (first, until))
            rows = slice(begin, end)
            open_ = None if found.reachable is None else found.reachable[rows]
            self.tilts[name].add(found.observed[rows], found.expected[rows], open_)
        for name, ratio in ratios.items():
            piece = ratio[first:until]
            self.bets[name].add(piece[~np.isnan(piece)])
        self.num_tokens += until - first
        self.merge.update(self.log_evidence())
        self.curve.append((self.num_tokens, self.log10_e))
        if len(self.curve) > MAX_CURVE:
            # the last point stays
            self.curve = self.curve[(len(self.curve) - 1) % 2 :: 2]

    def log_evidence(self) -> dict[str, float]:
        """Natural log of every process in the verdict that has seen an eligible token."""
        diagnostic = {family.name for family in FAMILIES if family.is_diagnostic}
        processes = {**self.tilts, **self.bets}
        return {
            name: process.log_e
            for name, process in processes.items()
            if process.num_tokens and name not in diagnostic
        }

    def summary(self) -> EvidenceSummary:
        """Returns what a report shows; worked out once between two additions."""
        if self._summary is None:
            self._summary = summarize(self)
        return self._summary

    def verdict(self) -> Verdict:
        """Judges what was seen so far; error rates hold whenever it is asked."""
        if self._verdict is None:
            self._verdict = judge(self.settings, self.summary(), self.excluded)
        return self._verdict

    def state(self) -> dict[str, Any]:
        """Everything that `restore` needs, as JSON values; floats survive JSON exactly."""
        last = self._last
        return {
            "version": _STATE_VERSION,
            "settings": asdict(self.settings),
            "num_tokens": self.num_tokens,
            "num_texts": self.num_texts,
            "num_impossible": self.num_impossible,
            "excluded": self.excluded,
            "curve": [list(point) for point in self.curve],
            "tilts": {name: process.state() for name, process in self.tilts.items()},
            "bets": {name: process.state() for name, process in self.bets.items()},
            "merge": self.merge.state(),
            "slots": self.slots.state(),
            "positions": {name: table.state() for name, table in self.positions.items()},
            "last": last
            and {"text": last.text, "position": last.position, "ids": last.ids.tolist()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on where `state` was taken, bit for bit.

        Raises:
            ValueError: If the state is of other settings, or of another version's processes.
        """
        if state["settings"] != asdict(self.settings):
            raise ValueError(
                f"the saved audit has settings {state['settings']}, this one "
                f"{asdict(self.settings)}: error rates hold for settings made before the data"
            )
        names = {"tilts": set(self.tilts), "bets": set(self.bets)}
        if state["version"] != _STATE_VERSION or any(set(state[k]) != v for k, v in names.items()):
            raise ValueError(
                "the saved audit is of another version of fairdraft: finish it there, or start anew"
            )
        self._summary = self._verdict = None
        for name in ("num_tokens", "num_texts", "num_impossible", "excluded"):
            setattr(self, name, state[name])
        self.curve = [(int(tokens), float(value)) for tokens, value in state["curve"]]
        parts = (("tilts", self.tilts), ("bets", self.bets), ("positions", self.positions))
        for key, members in parts:
            for name, member in members.items():
                member.restore(state[key][name])
        self.merge.restore(state["merge"])
        self.slots.restore(state["slots"])
        last = state["last"]
        self._last = last and LastText(
            last["text"], last["position"], np.array(last["ids"], np.int64)
        )
