"""The replay oracle: rounds decided again at the same addresses, and every token compared.

Two judges, both deterministic. The reference implementation of the ops must give the same tokens
bit for bit. The formulas of the rule in float64 (`formulas`), which share nothing with the ops
but the noise, must give them wherever no rounding could have turned the decision.

Trees of drafts are replayed node by node. Of a walk that was cut at a broken row, which fails its
request, the tokens before that row are compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from fairdraft.audit.replay_part import part_of

if TYPE_CHECKING:
    from fairdraft.audit.replay_part import RoundPart
    from fairdraft.engine import Observation
    from fairdraft.engine.round_rule import RoundRule

__all__ = ["Replay", "Replayable", "Replayer"]

MAX_MISMATCHES = 5


@dataclass(frozen=True)
class Replay:
    """What came of replaying.

    Attributes:
        num_rounds: Rounds replayed, counting one a row of the batch.
        num_tokens: Emitted tokens compared.
        num_drafts: Drafts compared.
        num_ties: Tokens that the float64 formulas leave to rounding.
        mismatches: The first differences, a sentence each.
    """

    num_rounds: int
    num_tokens: int
    num_drafts: int
    num_ties: int
    mismatches: tuple[str, ...]


@runtime_checkable
class Replayable(Protocol):
    """A subject in this process whose rounds can be decided again."""

    def replay_rounds(self) -> Replay:
        """Generates some texts and replays a sample of their rounds."""
        ...


@dataclass
class Replayer:
    """An observer of the engine that replays some rows of some rounds as they pass.

    Attributes:
        rule: That rounds are verified by.
        every: Replays one round in so many.
        rows_per_round: Most rows of a round.
        max_rounds: Most rounds to replay, counting one a row.
    """

    rule: RoundRule = "token"
    every: int = 3
    rows_per_round: int = 4
    max_rounds: int = 96
    _seen: int = 0
    _num_rounds: int = 0
    _num_tokens: int = 0
    _num_drafts: int = 0
    _num_ties: int = 0
    _mismatches: list[str] = field(default_factory=list)

    def __call__(self, seen: Observation) -> None:
        """Replays this round if it is its turn."""
        turn, is_other = divmod(self._seen, self.every)
        self._seen += 1
        count = min(self.rows_per_round, len(seen.key), self.max_rounds - self._num_rounds)
        if is_other or count <= 0:
            return
        # other rows each time
        first = turn * self.rows_per_round
        rows = np.unique((first + np.arange(count)) % len(seen.key))
        part = part_of(seen, rows, self.rule)
        self._compare_drafts(part)
        self._compare_with_reference(part)
        self._compare_with_formulas(part)
        self._num_rounds += len(rows)

    def result(self) -> Replay:
        """What came of it so far."""
        return Replay(
            self._num_rounds,
            self._num_tokens,
            self._num_drafts,
            self._num_ties,
            tuple(self._mismatches[:MAX_MISMATCHES]),
        )

    def _compare_drafts(self, part: RoundPart) -> None:
        from fairdraft import ops
        from fairdraft.noise import Stream, address

        for draw in part.draws():
            at = draw.rows
            drawn = ops.sample(
                draw.logits,
                address(
                    Stream.DRAFT,
                    key=part.key[at],
                    position=part.anchor[at] + draw.depth - 1,
                    anchor=part.anchor[at],
                    node=draw.node,
                    sample=part.sample[at],
                ),
                temperature=part.temperature[at],
                impl="reference",
            )
            found = part.draft_ids[at, draw.node - 1]
            for i, row in enumerate(at.tolist()):
                expected = int(drawn.token_ids[i])
                if expected != found[i]:
                    self._mismatches.append(
                        f"draft {draw.node} of {part.name(row)} is {int(found[i])}, and the "
                        f"reference draws {expected} at its address"
                    )
            self._num_drafts += len(at)

    def _compare_with_reference(self, part: RoundPart) -> None:
        verdict = part.verified()
        expected = verdict.token_ids.numpy()
        for row, emitted in enumerate(part.num_emitted.tolist()):
            given = part.token_ids[row, :emitted]
            again = expected[row, : int(verdict.num_emitted_tokens[row])]
            if part.is_cut[row]:
                again = again[:emitted]
            if given.tolist() != again.tolist():
                self._mismatches.append(
                    f"{part.name(row)} emitted {given.tolist()}, and the reference {again.tolist()}"
                )
            self._num_tokens += emitted

    def _compare_with_formulas(self, part: RoundPart) -> None:
        from fairdraft.audit.formulas import decide
        from fairdraft.audit.formulas_tree import decide_tree
        from fairdraft.audit.replay_part import TreePart

        for row, emitted in enumerate(part.num_emitted.tolist()):
            is_tree = isinstance(part, TreePart)
            decided = decide_tree(part, row) if is_tree else decide(part, row)
            given = part.token_ids[row, :emitted].tolist()
            again = [decision.token_id for decision in decided]
            if part.is_cut[row]:
                again = again[:emitted]
            if given == again:
                continue
            same = [a == b for a, b in zip(given, again, strict=False)]
            first = same.index(False) if False in same else len(same)
            if all(decision.is_clear for decision in decided[: first + 1]):
                self._mismatches.append(
                    f"{part.name(row)} emitted {given}, and the formulas of the rule give {again} "
                    "with the same noise"
                )
            else:
                self._num_ties += 1
