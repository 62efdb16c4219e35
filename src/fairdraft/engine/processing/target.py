"""The target's rows of a round, processed along the drafted path.

A row that cannot be sampled ends its request if, and only if, the walk comes there, as plain
decoding would. So that the walk can be made at all, such a row and those after it stand in as a
uniform law: rules are exact for any law, and what the walk emits from there on is cut.

Axes: B rows of the batch, C processed ones, K drafts, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from fairdraft.engine.processing.grammar import GrammarState
from fairdraft.engine.processing.order import Broken, process
from fairdraft.engine.processing.plan import ProcessingPlan
from fairdraft.engine.rows import RowTable
from fairdraft.ops.processors import DraftedPaths
from fairdraft.speculators import Guesses


@dataclass(frozen=True)
class ProcessedRows:
    """Processed logits of a round.

    Attributes:
        logits: [B, K + 1, V]; the raw ones themselves if no row asked for anything.
        broken: First row of a batch row that cannot be sampled, and why.
    """

    logits: Tensor
    broken: dict[int, Broken] = field(default_factory=dict)

    def cut(self, num_accepted: np.ndarray, num_emitted: np.ndarray) -> dict[int, str]:
        """Cuts walks that came to a broken row, in place; returns the errors of their requests."""
        errors = {}
        for row, (place, message) in self.broken.items():
            if num_accepted[row] >= place:
                num_accepted[row] = num_emitted[row] = place
                errors[row] = message
        return errors


def process_target(
    rows: RowTable, proposal: Guesses, logits: Tensor, *, keep_raw: bool = False
) -> ProcessedRows:
    """Applies every row's processors; rows that ask for none are left alone.

    Args:
        rows: The batch before the round.
        proposal: The round's drafts.
        logits: The target's [B, K + 1, V], float32; changed in place unless they are needed raw.
        keep_raw: Whether somebody else reads them; logprobs of raw logits keep them too.
    """
    chosen = np.flatnonzero(rows["is_processed"])
    if not len(chosen):
        return ProcessedRows(logits)
    if keep_raw or (rows["num_logprobs"][chosen] >= 0).any():
        logits = logits.clone()
    paths = DraftedPaths.of_round(
        rows.token_ids[chosen],
        rows["prompt_length"][chosen],
        rows["num_decided"][chosen],
        proposal.token_ids.numpy()[chosen],
        proposal.num_draft_tokens.numpy()[chosen],
        vocab_size=logits.shape[-1],
        index=chosen,
    )
    found = process(logits, paths, plans_of(rows, chosen), grammars_of(rows, chosen))
    broken = {int(chosen[c]): reason for c, reason in found.items()}
    for row, (place, _) in broken.items():
        logits[row, place:] = 0.0
    return ProcessedRows(logits, broken)


def grammars_of(rows: RowTable, chosen: np.ndarray) -> list[GrammarState | None]:
    """Where rows that are processed are in their grammars; a sequence's first call begins one."""
    states = []
    for row in chosen:
        sequence = rows.sequences[row]
        plan = sequence.request.plan
        if sequence.grammar is None and plan is not None and plan.grammar is not None:
            sequence.grammar = GrammarState(plan.grammar)
        states.append(sequence.grammar)
    return states


def plans_of(rows: RowTable, chosen: np.ndarray) -> list[ProcessingPlan]:
    """Plans of rows that are processed."""
    plans = [rows.sequences[row].request.plan for row in chosen]
    assert None not in plans
    return plans  # pyright: ignore[reportReturnType]
