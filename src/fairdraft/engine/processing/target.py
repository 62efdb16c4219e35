"""The target's rows of a round, each processed along its own drafted path.

A row that cannot be sampled ends its request if, and only if, the walk comes there, as plain
decoding would. So that the walk can be made at all, such a row and those after it stand in as a
uniform law: rules are exact for any law, and what the walk emits from there on is cut.

Axes: B rows of the batch, C processed ones, K drafts, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fairdraft.engine.processing.device import DeadEnds, process_on_device
from fairdraft.engine.processing.grammar import GrammarState
from fairdraft.engine.processing.order import Broken, process
from fairdraft.engine.processing.plan import ProcessingPlan
from fairdraft.engine.rows import RowTable
from fairdraft.ops import Impl
from fairdraft.ops.dispatch import resolve_impl
from fairdraft.ops.processors import DraftedPaths, Tally
from fairdraft.ops.token_tree import TokenTree
from fairdraft.speculators import Guesses


@dataclass(frozen=True)
class ProcessedRows:
    """Processed logits of a round.

    Attributes:
        logits: [B, K + 1, V]; the raw ones themselves if no row asked for anything.
        chosen: Batch rows that are processed [C].
        broken: Rows of them that cannot be sampled, and why, by index of `chosen`.
        dead_ends: More of them, which a device found; None for none.
    """

    logits: Tensor
    chosen: np.ndarray
    broken: Broken = field(default_factory=dict)
    dead_ends: DeadEnds | None = None

    def cut(
        self, num_accepted: np.ndarray, num_emitted: np.ndarray, path: np.ndarray | None = None
    ) -> dict[int, str]:
        """Cuts walks that came to a broken row, in place; returns the errors of their requests.

        To be called once the host has the verdict. `path` [B, D + 1] holds the rows of each walk;
        None for those of a chain.
        """
        errors = {}
        broken = dict(self.broken)
        if self.dead_ends is not None:
            self.dead_ends.add_to(broken)
        for c, messages in broken.items():
            row = int(self.chosen[c])
            walked = range(num_accepted[row] + 1)
            if path is not None:
                walked = path[row, : num_accepted[row] + 1].tolist()
            for place, node in enumerate(walked):
                if node in messages:
                    num_accepted[row] = num_emitted[row] = place
                    errors[row] = messages[node]
                    break
        return errors


def process_target(
    rows: RowTable,
    proposal: Guesses,
    logits: Tensor,
    *,
    keep_raw: bool = False,
    impl: Impl = "auto",
    tree: TokenTree | None = None,
) -> ProcessedRows:
    """Applies every row's processors; rows that ask for none are left alone.

    Args:
        rows: The batch before the round.
        proposal: The round's drafts.
        logits: The target's [B, K + 1, V], float32; changed in place unless they are needed raw.
        keep_raw: Whether somebody else reads them; logprobs of raw logits keep them too.
        impl: Of the ops; "auto" runs kernels where the logits are on a device.
        tree: Of the drafts; None for chains. Where it branches, a device is waited for.
    """
    chosen = rows["is_processed"].nonzero()[0]
    if not len(chosen):
        return ProcessedRows(logits, chosen)
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
        tree=tree,
    )
    asked = paths, plans_of(rows, chosen), grammars_of(rows, chosen)
    if paths.tree.is_chain and resolve_impl(impl, logits.device) == "triton":
        found, dead_ends = process_on_device(logits, *asked, tallies_of(rows, chosen))
        return ProcessedRows(logits, chosen, found, dead_ends)
    # kernels go down chains alone; these go anywhere, and wait for the device
    broken = process(logits, *asked)
    for c, messages in broken.items():
        logits[int(chosen[c]), torch.from_numpy(paths.tree.below([*messages]))] = 0.0
    return ProcessedRows(logits, chosen, broken)


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


def tallies_of(rows: RowTable, chosen: np.ndarray) -> list[Tally | None]:
    """Counts of the decided tokens of rows with penalties, brought up to date."""
    tallies = []
    for row in chosen:
        sequence = rows.sequences[row]
        params = sequence.request.plan.row_params
        if params.is_penalized and sequence.tally is None:
            sequence.tally = Tally(params.vocab_size, reads_prompt=params.repetition != 1)
        if sequence.tally is not None:
            decided = rows.token_ids[row, : rows.records["num_decided"][row]]
            sequence.tally.count(decided, int(rows.records["prompt_length"][row]))
        tallies.append(sequence.tally)
    return tallies


def plans_of(rows: RowTable, chosen: np.ndarray) -> list[ProcessingPlan]:
    """Plans of rows that are processed."""
    plans = [rows.sequences[row].request.plan for row in chosen]
    assert None not in plans
    return plans  # pyright: ignore[reportReturnType]
