"""The processors of a round on a device: packed on the host, applied by kernels, nothing waits.

The order is that of `fairdraft.engine.processing.order`, and so are the bits. Grammars are matched
on the host and custom processors called from it, as there.

Axes: B sequences, C of the paths, R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fairdraft.engine.processing.custom import apply_custom
from fairdraft.engine.processing.grammar import GrammarState, match_grammar
from fairdraft.engine.processing.order import Broken, dead_end, note, probes_of
from fairdraft.engine.processing.plan import ProcessingPlan
from fairdraft.ops import processors
from fairdraft.ops.processors import Bitmask, DraftedPaths, Guard, Tally


@dataclass(frozen=True)
class DeadEnds:
    """Rows that turn out to have no token left.

    Attributes:
        first: First such row of each guarded sequence [G], int32; R or more for none. On its way
            to the host: there once the host has waited for anything that came later.
        guarded: Which of the paths are guarded.
        plans: Of the paths.
        paths: Of the round.
    """

    first: Tensor
    guarded: Sequence[int]
    plans: Sequence[ProcessingPlan]
    paths: DraftedPaths

    def add_to(self, broken: Broken) -> None:
        """Adds them to other rows that cannot be sampled, by index of the paths."""
        for c, row in zip(self.guarded, self.first.tolist(), strict=True):
            if row < self.paths.width:
                note(broken, c, {row: dead_end(self.plans[c], self.paths, c, row)})


def process_on_device(
    logits: Tensor,
    paths: DraftedPaths,
    plans: Sequence[ProcessingPlan],
    grammars: Sequence[GrammarState | None],
    tallies: Sequence[Tally | None],
    stand_in: Tensor | None = None,
) -> tuple[Broken, DeadEnds]:
    """Processes the rows of C sequences, in place, and makes every row one that can be sampled.

    Args:
        logits: float32 [B, R, V].
        paths: Of C of the B sequences.
        plans: What each of them asks for.
        grammars: Where each is in its grammar; None without one.
        tallies: Counts of decided tokens of those with penalties.
        stand_in: What takes the place of a sequence's rows from the first that cannot be sampled
            on [B, R, V]; None for zeros.

    Returns:
        Rows that cannot be sampled, and why, as far as the host knows them. And those of which the
        device knows.

    Law:
        That of `order.process`.
    """
    broken: Broken = {}
    bitmasks: list[Bitmask] = []
    for c, grammar in enumerate(grammars):
        if grammar is not None:
            matched = match_grammar(paths, c, grammar)
            note(broken, c, matched.broken)
            pairs = zip(matched.rows, matched.masks, strict=True)
            bitmasks += [Bitmask(c, row, bits) for row, bits in pairs]
    guarded = [c for c, plan in enumerate(plans) if plan.mask_names]
    edits = processors.pack_edits(
        paths,
        [plan.row_params for plan in plans],
        dtype=logits.dtype,
        device=logits.device,
        tallies=tallies,
        bitmasks=bitmasks,
        guards=[Guard(c, probes_of(plans[c], logits.shape[-1])) for c in guarded],
    )
    processors.edit_rows(logits, edits)
    for c, plan in enumerate(plans):
        if plan.processors:
            note(broken, c, apply_custom(logits, paths, c, plan.processors))
    first = processors.guard_rows(logits, edits, stand_in=stand_in)
    for c, rows in broken.items():
        index, row = int(paths.index[c]), min(rows)
        logits[index, row:] = 0.0 if stand_in is None else stand_in[index, row:]
    first = first.to("cpu", non_blocking=True)
    return broken, DeadEnds(first, guarded, plans, paths)
