"""Watches the rounds of assisted generation in `transformers`, without touching what they decide.

Axes: L drafts of a round, N tokens of a text, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairdraft.audit.subject import InvalidSubject
from fairdraft.audit.subjects.rows import Decided
from fairdraft.stats.tokens import NO_TOKEN, Source

__all__ = ["RoundLog", "watched"]

_FACTORY = "_get_candidate_generator"


class RoundLog:
    """The rounds of one text, as they were decided.

    Attributes:
        num_drafts: Drafts tested.
    """

    def __init__(self) -> None:
        self.num_drafts = 0
        self._begin = 0
        self._drafts: Tensor = torch.zeros(0, dtype=torch.int64)
        self._draft_logits: Tensor | None = None
        self._columns: dict[str, list[Any]] = {"slot": [], "source": [], "drafted": []}
        self._target: list[Tensor] = []
        self._draft: list[Tensor] = []

    def begin(self, decided: Tensor, proposed: Tensor, logits: Tensor | None) -> None:
        """Notes what is proposed.

        Args:
            decided: Ids so far [1, n].
            proposed: The same and the drafts [1, n + L].
            logits: Processed scores that drafts were drawn from [1, L, V]; None if they were not
                drawn.
        """
        self._begin = decided.shape[1]
        self._drafts = proposed[0, self._begin :].cpu()
        self._draft_logits = None if logits is None else logits[0].detach().cpu()

    def end(self, decided: Tensor, scores: Tensor) -> None:
        """Notes what the round decided.

        Args:
            decided: Ids so far [1, m].
            scores: Processed scores of the target at each row [1, L + 1, V].
        """
        emitted = decided[0, self._begin :].cpu()
        count, present = len(emitted), len(self._drafts)
        is_same = emitted[: min(count, present)] == self._drafts[:count]
        # a rejected draft never comes back as its own replacement
        accepted = int((~is_same).to(torch.int64).argmax()) if not is_same.all() else len(is_same)
        for slot in range(count):
            is_tested = slot < present
            if slot < accepted:
                source = Source.ACCEPTED
            elif is_tested:
                source = Source.REPLACED
            else:
                source = Source.BONUS if present else Source.PLAIN
            self.num_drafts += is_tested
            self._columns["slot"].append(slot)
            self._columns["source"].append(int(source))
            self._columns["drafted"].append(int(self._drafts[slot]) if is_tested else NO_TOKEN)
            row = scores[0, slot].detach().to("cpu", torch.float32)
            self._target.append(row)
            laws = self._draft_logits
            unknown = torch.full_like(row, torch.nan)
            self._draft.append(unknown if laws is None or not is_tested else laws[slot].float())

    def decided(self, text: int, token_ids: list[int]) -> tuple[Decided, Tensor, Tensor | None]:
        """Every token of the text with the logits of its target and draft [N, V].

        Raises:
            InvalidSubject: If rounds were missed.
        """
        count = len(token_ids)
        if len(self._target) != count:
            raise InvalidSubject(
                f"{count} tokens came out of rounds that decided {len(self._target)}; this "
                "version of transformers generates in a way that is not understood here"
            )
        drafted = np.array(self._columns["drafted"], np.int64)
        draft = torch.stack(self._draft)
        is_drawn = ~torch.isnan(draft[:, 0]).numpy()
        decided = Decided(
            text=np.full(count, text),
            position=np.arange(count),
            token_id=np.array(token_ids, np.int64),
            slot=np.array(self._columns["slot"], np.int64),
            source=np.array(self._columns["source"], np.int8),
            drafted_id=drafted,
            is_point_mass=(drafted != NO_TOKEN) & ~is_drawn,
        )
        return decided, torch.stack(self._target), draft if is_drawn.any() else None


@contextmanager
def watched(network: Any, log: RoundLog) -> Iterator[None]:
    """Shows the rounds of a network's assisted generation to a log inside the block.

    Raises:
        InvalidSubject: If this version of `transformers` makes candidates in another way.
    """
    factory = getattr(network, _FACTORY, None)
    if factory is None:
        raise InvalidSubject(
            f"this version of transformers has no {_FACTORY}, so drafts cannot be seen; use one "
            "from 5.17 to 5.24, or audit plain generation"
        )

    def make(*args: Any, **options: Any) -> Any:
        generator = factory(*args, **options)
        propose, learn = generator.get_candidates, generator.update_candidate_strategy

        def get_candidates(input_ids: Tensor, **more: Any) -> Any:
            proposed, logits = propose(input_ids, **more)
            log.begin(input_ids, proposed, logits)
            return proposed, logits

        def update_candidate_strategy(input_ids: Tensor, scores: Tensor, num_matches: int) -> Any:
            log.end(input_ids, scores)
            return learn(input_ids, scores, num_matches)

        generator.get_candidates = get_candidates
        generator.update_candidate_strategy = update_candidate_strategy
        return generator

    setattr(network, _FACTORY, make)
    try:
        yield
    finally:
        delattr(network, _FACTORY)
