"""Who drafts in the equivalence matrix: drafts of each kind of law q, for toys of few ids.

Axes: B rows, K drafted, N rows that draft at a step, C candidates, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairdraft.speculators.chain import DraftChain
from fairdraft.speculators.proposal import DraftState, Guesses

__all__ = ["FORMS", "TREE", "TREE_FORMS", "FewCandidates", "config_of"]

#: the rule that verifies several candidates for a token
TREE = "tree"
#: what q is, in the order of the table
FORMS = ("dense", "dense, processed", "sparse", "point mass")
#: the same of trees: no drafter draws them from candidates, and processed drafts are refused
TREE_FORMS = ("dense", "point mass", "suffix")
#: verification rules by the engine's names of them
RULES = {"token": "standard", "block": "block", "common_noise": "common_noise", TREE: TREE}
#: children of a node by its depth: two candidates for each of the two tokens
BREADTHS = (2, 2)


class FewCandidates:
    """Drafts from a table's law on all ids but one, and hands q on for these alone.

    The id that is left out follows from the last decided token and the draft's place: hypotheses
    (a) to (c) hold as for `Dflash2Speculator`.
    """

    name = "few candidates"

    def __init__(self, table: np.ndarray, num_speculative_tokens: int) -> None:
        """Takes laws [V, V] by the last token, and K."""
        self.num_speculative_tokens = num_speculative_tokens
        self._logits = torch.from_numpy(np.log(table)).float()
        self._chain = DraftChain(self.name, len(table), greedy=False)

    def propose(self, state: DraftState) -> Guesses:
        """Draws each draft from its candidates.

        Noise:
            One race for each draft, as the sampler says.
        """
        size = len(self._logits)
        counts = state.max_draft_tokens.copy()
        last = torch.from_numpy(state.token_ids[np.arange(state.num_rows), state.num_decided - 1])
        left_out = (last[:, None] + torch.arange(self.num_speculative_tokens)) % size
        others = torch.arange(1, size)
        candidates = (left_out[..., None] + others) % size

        def next_logits(step: int, before: np.ndarray, rows: np.ndarray) -> Tensor:
            at = torch.from_numpy(rows)
            previous = last if step == 1 else torch.from_numpy(before)
            law = self._logits[previous[at]].clone()
            law[torch.arange(len(at)), left_out[at, step - 1]] = -torch.inf
            return law

        return self._chain.draw(state, counts, next_logits, candidates=candidates)

    def commit(self, num_accepted_tokens: np.ndarray) -> None:
        """Keeps no state."""

    def admit_row(self, row: int) -> None:
        """Keeps no state."""

    def move_row(self, source: int, destination: int) -> None:
        """Keeps no state."""

    def drop_row(self, row: int) -> None:
        """Keeps no state."""


def config_of(
    form: str, rule: str, draft: Any, table: np.ndarray, num_drafts: int
) -> dict[str, Any]:
    """A `speculative_config`.

    Args:
        form: One of FORMS; of TREE_FORMS under rule TREE.
        rule: Of RULES.
        draft: The draft model.
        table: Its laws [V, V] by the last token.
        num_drafts: K.
    """
    config: dict[str, Any] = {
        "num_speculative_tokens": num_drafts,
        "rejection_sample_method": RULES[rule],
    }
    if rule == TREE:
        config["speculative_token_tree"] = BREADTHS
    if form == "suffix":
        return config | {"method": "suffix"}
    # these have no tokenizer to compare, and their ids are the target's
    config["check_vocabulary"] = False
    if form == "sparse":
        return config | {"method": "custom", "model": FewCandidates(table, num_drafts)}
    if form == "point mass":
        config["draft_sample_method"] = "greedy"
    return config | {"model": draft, "process_draft_logits": form == "dense, processed"}
