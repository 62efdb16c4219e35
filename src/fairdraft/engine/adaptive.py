"""How many drafts a request's next round gets, from its own earlier rounds.

Hypothesis (b) asks that the number of drafts be decided from H_i, everything before the round, and
laws: how many drafts stood in verified rounds of the same request is part of it, what this round
draws is not. Nothing of other requests is read, so a key repeats its text (level R1).

With a chance a that a draft stands and a draft that costs c rounds without drafts, K drafts bring
(1 + a + .. + a^K) / (1 + c K) tokens for the cost of such a round (Leviathan et al. 2023, theorem
3.8); the K with the most is taken. Axes: B rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

#: what a round counts of the one after it
MEMORY = 0.9
#: drafts that the first estimate counts for, and the share of them that stood
PRIOR_DRAFTS, PRIOR_CHANCE = 4.0, 0.7

#: fields of a row, weighted drafts that were tested and that stood
FIELDS = [("tested", np.float64), ("stood", np.float64)]


@dataclass(frozen=True)
class DraftSchedule:
    """Chooses K for each row from its fields `tested` and `stood`.

    Attributes:
        most: The largest K.
        cost_ratio: c, the cost of a draft (drafting it and its row of the target) over that of a
            round without drafts.
    """

    most: int
    cost_ratio: float

    def num_drafts(self, rows: np.ndarray) -> np.ndarray:
        """K of the next round of each row [B], 0 to `most`; the smallest of equally good ones.

        Args:
            rows: Records of the rows [B].
        """
        chance = (rows["stood"] + PRIOR_DRAFTS * PRIOR_CHANCE) / (rows["tested"] + PRIOR_DRAFTS)
        best = np.zeros(len(rows), np.int64)
        # tokens and gain of the K before; one chance for all places makes the gain rise, then fall
        power, tokens = np.ones(len(rows)), np.ones(len(rows))
        most_gained = np.ones(len(rows))
        for count in range(1, self.most + 1):
            power = power * chance
            tokens = tokens + power
            gained = tokens / (1.0 + self.cost_ratio * count)
            best = np.where(gained > most_gained, count, best)
            most_gained = np.maximum(gained, most_gained)
        return best

    def note(self, rows: np.ndarray, num_drafts: np.ndarray, num_accepted: np.ndarray) -> None:
        """Takes in a verified round.

        Without drafts only the memory fades, so that a row tries again.

        Args:
            rows: Records of the rows [B]; changed in place.
            num_drafts: Drafts that were verified [B].
            num_accepted: Drafts that stood [B].
        """
        # drafts after the first that fell were not tested
        tested = np.minimum(num_drafts, num_accepted + 1)
        rows["tested"] = MEMORY * rows["tested"] + tested
        rows["stood"] = MEMORY * rows["stood"] + num_accepted
