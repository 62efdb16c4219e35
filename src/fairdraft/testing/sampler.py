"""A hand-written sampler as a subject: a function of the context, and the laws it should keep.

Axes: N tokens of a batch, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from fairdraft.audit.subject import Batch, InvalidSubject, SubjectInfo
from fairdraft.stats.tokens import NO_TOKEN, ScoredTokens, Source

__all__ = ["Round", "SamplerSubject"]

Context: TypeAlias = tuple[int, ...]
Law: TypeAlias = Callable[[Context], Any]


@dataclass(frozen=True)
class Round:
    """What one call of a speculative sampler did.

    Attributes:
        tokens: Emitted, at least one: the accepted drafts and one more.
        drafts: Every draft that was tested or would have been: as many as were proposed.
    """

    tokens: Sequence[int]
    drafts: Sequence[int]


Sampler: TypeAlias = Callable[[Context, np.random.Generator], "int | Sequence[int] | Round"]


class SamplerSubject:
    """Calls a sampler until texts are full, and scores what it emits.

    The sampler gets the context (prompt and what was emitted, a tuple of ids) and a generator of
    the text's own, and returns a token; or several, if a round emits several; or a `Round`, which
    also says what was drafted. It need not use the generator; with it every run is the same.

    Args:
        sample: The sampler.
        target: From a context to probabilities [V], what the next token should follow.
        draft: From a context to probabilities [V], what the draft at that place is drawn from;
            None if nothing is drafted. Families and known bugs that need it are then not covered.
        prompts: Contexts to begin with, in turns.
        num_tokens: Tokens a text; what a round emits past that is cut.
        num_drafts: K, for a sampler that proposes K drafts in every round and returns its tokens
            alone; None if that is not so.
        greedy_drafts: Drafts are the draft's best tokens, not drawn from its law.
        sampler: "gumbel", "inverse_cdf", "race" or "unknown": how tokens are drawn, which decides
            what shared noise looks like.
        rule: "token" for token-by-token rejection sampling, "block", or None.
        seed: Of the generators.
        parameters: What else is to be recorded, JSON values.
        texts_per_batch: Texts between two looks at the evidence.
        name: One line for people; None for the function's name.

    Raises:
        ValueError: If an argument cannot be used.
    """

    def __init__(
        self,
        sample: Sampler,
        target: Law,
        draft: Law | None = None,
        *,
        prompts: Sequence[Sequence[int]] = ((0,),),
        num_tokens: int = 32,
        num_drafts: int | None = None,
        greedy_drafts: bool = False,
        sampler: str = "unknown",
        rule: str | None = "token",
        seed: int = 0,
        parameters: dict[str, Any] | None = None,
        texts_per_batch: int = 32,
        name: str | None = None,
    ) -> None:
        if num_tokens < 1 or texts_per_batch < 1:
            raise ValueError(
                f"num_tokens = {num_tokens} and texts_per_batch = {texts_per_batch} must be at "
                "least 1"
            )
        if num_drafts is not None and num_drafts < 1:
            raise ValueError(f"num_drafts = {num_drafts} must be at least 1, or None")
        if not prompts:
            raise ValueError("prompts is empty; give at least one context")
        self.sample, self.target, self.draft = sample, target, draft
        self.prompts = [tuple(int(token) for token in prompt) for prompt in prompts]
        self.num_tokens, self.num_drafts = num_tokens, num_drafts
        self.greedy_drafts = greedy_drafts
        self.sampler, self.rule, self.seed = sampler, rule, seed
        self.parameters = parameters or {}
        self.texts_per_batch = texts_per_batch
        self.name = name or getattr(sample, "__name__", type(sample).__name__)

    @property
    def info(self) -> SubjectInfo:
        """What is recorded about the subject."""
        is_speculative = self.draft is not None or self.num_drafts is not None
        return SubjectInfo(
            kind="sampler",
            name=self.name,
            parameters={
                **self.parameters,
                "num_tokens": self.num_tokens,
                "num_drafts": self.num_drafts,
                "seed": self.seed,
                "prompts": [list(prompt) for prompt in self.prompts],
            },
            is_speculative=is_speculative,
            sampler=self.sampler,
            rule=self.rule if is_speculative else None,
        )

    def batches(self, cursor: Any = None) -> Iterator[Batch]:
        """Yields batches for ever; the cursor is the number of texts before."""
        first = 0 if cursor is None else int(cursor)
        while True:
            rows = _Rows()
            for text in range(first, first + self.texts_per_batch):
                self._play(text, rows)
            first += self.texts_per_batch
            yield Batch(rows.scored(), first)

    def _play(self, text: int, rows: _Rows) -> None:
        generator = np.random.default_rng([self.seed % (1 << 64), text])
        prompt = self.prompts[text % len(self.prompts)]
        context, done = prompt, 0
        while done < self.num_tokens:
            tokens, drafts, num_drafts = self._round(context, generator)
            for slot, token in enumerate(tokens[: self.num_tokens - done]):
                is_tested = self.draft is not None if num_drafts is None else slot < num_drafts
                target = _law("target", self.target, context)
                if not 0 <= token < len(target):
                    raise InvalidSubject(
                        f"{self.name} returned token {token} after {context[-8:]}, outside of the "
                        f"{len(target)} ids of the target's law"
                    )
                draft = None
                if self.draft is not None and is_tested:
                    draft = _law("draft", self.draft, context)
                rows.add(
                    text=text,
                    position=done,
                    token=token,
                    slot=slot,
                    source=_source(slot, len(tokens), num_drafts),
                    drafted=drafts[slot] if slot < len(drafts) else NO_TOKEN,
                    context=context,
                    target=target,
                    draft=draft,
                    is_point_mass=is_tested and self.greedy_drafts,
                )
                context, done = (*context, token), done + 1

    def _round(
        self, context: Context, generator: np.random.Generator
    ) -> tuple[list[int], list[int], int | None]:
        """Tokens of one call, the drafts if known, and how many there were if that is known."""
        found = self.sample(context, generator)
        drafts: list[int] = []
        num_drafts = self.num_drafts
        if isinstance(found, Round):
            drafts = [int(token) for token in found.drafts]
            num_drafts, found = len(drafts), found.tokens
        tokens = [int(token) for token in np.atleast_1d(np.asarray(found))]
        if not tokens or (num_drafts is not None and len(tokens) > num_drafts + 1):
            raise InvalidSubject(
                f"{self.name} returned {len(tokens)} tokens of a round with "
                f"{num_drafts or 'no known number of'} drafts; a round emits the accepted drafts "
                "and one token more"
            )
        kept = len(tokens) - 1
        if drafts and tokens[:kept] != drafts[:kept]:
            raise InvalidSubject(
                f"{self.name} returned the tokens {tokens} for the drafts {drafts}; all but the "
                "last are accepted drafts"
            )
        return tokens, drafts, num_drafts


class _Rows:
    """Tokens of a batch as they come."""

    def __init__(self) -> None:
        self._columns: dict[str, list[Any]] = {}

    def add(self, **values: Any) -> None:
        for name, value in values.items():
            self._columns.setdefault(name, []).append(value)

    def scored(self) -> ScoredTokens:
        columns = self._columns
        laws = columns["target"]
        widths = {len(law) for law in laws}
        widths |= {len(law) for law in columns["draft"] if law is not None}
        if len(widths) > 1:
            raise InvalidSubject(
                f"laws have {sorted(widths)} probabilities; give one for each id, always"
            )
        draft = None
        if any(law is not None for law in columns["draft"]):
            unknown = np.full(len(laws[0]), np.nan)
            draft = np.stack([unknown if law is None else law for law in columns["draft"]])
        before = [(NO_TOKEN, NO_TOKEN, *context)[-2:] for context in columns["context"]]
        return ScoredTokens(
            column=np.array(columns["token"]),
            target=np.stack(laws),
            ids=None,
            draft=draft,
            text=np.array(columns["text"]),
            position=np.array(columns["position"]),
            slot=np.array(columns["slot"]),
            source=np.array(columns["source"], np.int8),
            drafted=np.array(columns["drafted"]),
            previous=np.array(before)[:, ::-1].copy(),
            point_mass=np.array(columns["is_point_mass"]),
        )


def _law(name: str, law: Law, context: Context) -> np.ndarray:
    found = np.asarray(law(context), np.float64)
    if found.ndim != 1:
        raise InvalidSubject(
            f"the {name}'s law after {context[-8:]} has shape {found.shape}; give [V] probabilities"
        )
    return found


def _source(slot: int, num_tokens: int, num_drafts: int | None) -> Source:
    if num_drafts is None:
        return Source.UNKNOWN
    if num_drafts == 0:
        return Source.PLAIN
    if slot < num_tokens - 1:
        return Source.ACCEPTED
    return Source.BONUS if slot == num_drafts else Source.REPLACED
