"""A toy decoder: Markov tables through the production ops, every token scored exactly.

It is what planted faults and the kernels' rows run on. Axes: T texts of a batch in step, L tokens
a text, N = T L scored tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from fairdraft import noise
from fairdraft.audit.subject import Batch, InvalidSubject, SubjectInfo, refuse_lossy
from fairdraft.audit.subjects import markov
from fairdraft.audit.subjects.markov import Decoding, MarkovPair, Rows
from fairdraft.audit.subjects.markov_tree import play_tree
from fairdraft.noise import Trace
from fairdraft.ops import RowError
from fairdraft.stats.tokens import NO_TOKEN, ScoredTokens, Source

__all__ = ["Texts", "ToySubject"]

#: decided before the first round, so that no position is 0
PROMPT = (0, 0, 0, 0, 0)


@dataclass
class ToySubject:
    """Decodes texts from Markov tables; text s has the same tokens whatever the batches.

    Attributes:
        pair: Tables of target and draft.
        decoding: Parameters of every request.
        length: Tokens a text, L.
        seed: Of the first request; requests of one turn through the prompts share a seed.
        num_samples: Texts a request: text s is sample s mod n of request s // n.
        prompts: Prompts that requests take in turn.
        has_plain_keys: A request's key is its seed, unmixed: fast, and for a single prompt only.
        is_ragged: A round that begins at position P of text s wants (P + s) mod (K + 1) drafts.
        texts_per_batch: T.
        name: One line for people.
    """

    pair: MarkovPair
    decoding: Decoding
    length: int = 16
    seed: int = 0
    num_samples: int = 1
    prompts: tuple[tuple[int, ...], ...] = (PROMPT,)
    has_plain_keys: bool = False
    is_ragged: bool = False
    texts_per_batch: int = 1024
    name: str = "Markov tables through the ops"
    _tables: dict[str, np.ndarray] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        refuse_lossy(self.decoding.rule)
        if self.length < 1 or self.num_samples < 1 or self.texts_per_batch < 1:
            raise ValueError(
                f"length = {self.length}, num_samples = {self.num_samples} and texts_per_batch = "
                f"{self.texts_per_batch} must be at least 1"
            )
        if not self.prompts or not all(self.prompts):
            raise ValueError(f"prompts = {self.prompts} must hold prompts of at least one token")
        if self.has_plain_keys and (len(self.prompts) > 1 or self.seed < 0):
            raise ValueError(
                f"seed = {self.seed} cannot be the key of {len(self.prompts)} prompts unmixed; "
                "give one prompt and a seed of at least 0, or leave has_plain_keys off"
            )
        # now, so that a fault planted later cannot move what it is judged by
        pair, decoding = self.pair, self.decoding
        self._tables["target"] = pair.target_law(decoding)
        self._tables["draft"] = pair.draft_law(decoding if decoding.temperature else Decoding(0))
        if decoding.is_filtered:
            self._tables["unfiltered"] = pair.target_law(decoding, filtered=False)
        if decoding.is_filtered or decoding.temperature != 1:
            self._tables["raw_draft"] = pair.raw_draft_law()

    @property
    def info(self) -> SubjectInfo:
        """What is recorded about the subject."""
        is_gumbel = self.decoding.method == "gumbel"
        return SubjectInfo(
            kind="kernel",
            name=self.name,
            parameters={
                **asdict(self.decoding),
                "breadths": list(self.decoding.breadths),
                "vocab_size": self.pair.vocab_size,
                "length": self.length,
                "seed": self.seed,
                "num_samples": self.num_samples,
                "prompts": [list(prompt) for prompt in self.prompts],
                "has_plain_keys": self.has_plain_keys,
                "is_ragged": self.is_ragged,
            },
            is_speculative=self.decoding.num_drafts > 0,
            sampler="gumbel" if is_gumbel else "race",
            rule=self.decoding.rule,
        )

    def batches(self, cursor: Any = None) -> Iterator[Batch]:
        """Yields batches of texts for ever; the cursor is the number of texts before."""
        first = 0 if cursor is None else int(cursor)
        while True:
            tokens = self.play(first, self.texts_per_batch)
            first += self.texts_per_batch
            yield Batch(tokens, first)

    def play(self, first: int, num_texts: int, trace: Trace | None = None) -> ScoredTokens:
        """Decodes texts first .. first + num_texts - 1 and scores their tokens; see `decode`."""
        return self._scored(
            np.arange(first, first + num_texts), self.decode(first, num_texts, trace)
        )

    def decode(self, first: int, num_texts: int, trace: Trace | None = None) -> Texts:
        """Decodes texts first .. first + num_texts - 1, all in step.

        Raises:
            InvalidSubject: If a row could not be sampled.
        """
        text = np.arange(first, first + num_texts)
        key, prompt_length, before = self._requests(text)
        texts = Texts(num_texts, self.length, before)
        while True:
            rows = np.flatnonzero(texts.done < self.length)
            if not len(rows):
                return texts
            done = texts.done[rows]
            want = np.full(len(rows), self.decoding.num_drafts)
            if self.is_ragged:
                want = (done + text[rows]) % (self.decoding.num_drafts + 1)
            at = Rows(
                key=key[rows],
                sample=text[rows] % self.num_samples,
                anchor=prompt_length[rows] + done,
                last=texts.last(rows),
                num_drafts=want,
            )
            play = play_tree if self.decoding.rule == "tree" else markov.play
            decided = play(self.pair, self.decoding, at, trace)
            if decided.error.any():
                code = RowError(int(decided.error[decided.error != 0][0]))
                raise InvalidSubject(f"a row could not be sampled: {code.message}")
            texts.append(rows, decided)

    def _requests(self, text: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Key and prompt length of each text [T], and the prompt's last two tokens [T, 2]."""
        request, of_text = np.unique(text // self.num_samples, return_inverse=True)
        turn, prompt = np.divmod(request, len(self.prompts))
        seeds = turn + self.seed
        if self.has_plain_keys:
            key = seeds.astype(np.uint64)
        else:
            each = zip(seeds.tolist(), prompt.tolist(), strict=True)
            mixed = (noise.request_key(seed, self.prompts[p]) for seed, p in each)
            key = np.fromiter(mixed, np.uint64, len(request))
        length = np.array([len(ids) for ids in self.prompts])
        before = np.array(
            [(ids[-1], ids[-2] if len(ids) > 1 else NO_TOKEN) for ids in self.prompts]
        )
        return key[of_text], length[prompt][of_text], before[prompt][of_text]

    def _scored(self, text: np.ndarray, texts: Texts) -> ScoredTokens:
        columns = {name: part.reshape(-1) for name, part in texts.columns().items()}
        context = columns["previous"]
        laws = {
            name: table[context if len(table) > 1 else np.zeros_like(context)]
            for name, table in self._tables.items()
        }
        is_tested = columns["drafted"] >= 0
        # a guess knows more than what was decided before, so no cell may depend on it
        is_guessed = self.decoding.rule == "common_noise"
        laws["draft"][~is_tested] = np.nan
        return ScoredTokens(
            column=columns["token"],
            target=laws["target"],
            ids=None,
            draft=laws["draft"] if is_tested.any() and not is_guessed else None,
            text=np.repeat(text, self.length),
            position=np.tile(np.arange(self.length), len(text)),
            slot=columns["slot"],
            source=columns["source"].astype(np.int8),
            drafted=columns["drafted"],
            previous=np.stack([context, columns["second_previous"]], axis=1),
            unfiltered=laws.get("unfiltered"),
            raw_draft=None if is_guessed else laws.get("raw_draft"),
            point_mass=is_tested
            & (self.decoding.is_greedy or self.decoding.temperature == 0)
            & (not is_guessed),
        )


class Texts:
    """Texts as they grow; what sticks out past L is cut.

    Attributes:
        done: Tokens of each text so far [T].
        before: The prompt's last token and the one before that [T, 2].
        token, slot, source, drafted: As in `ScoredTokens`, [T, L].
    """

    def __init__(self, num_texts: int, length: int, before: np.ndarray) -> None:
        self.done = np.zeros(num_texts, np.int64)
        self.before = before
        shape = (num_texts, length)
        self.token, self.slot = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self.source, self.drafted = np.zeros(shape, np.int64), np.full(shape, -1)

    def last(self, rows: np.ndarray) -> np.ndarray:
        """The last decided token of each row."""
        done = self.done[rows]
        return np.where(done > 0, self.token[rows, done - 1], self.before[rows, 0])

    def append(self, rows: np.ndarray, decided: markov.Round) -> None:
        """Adds a round's tokens, and how each came out of it."""
        length = self.token.shape[1]
        slots = np.arange(decided.token_ids.shape[1])
        accepted, present = decided.num_accepted[:, None], decided.num_drafts[:, None]
        last = np.where(accepted < present, int(Source.REPLACED), int(Source.BONUS))
        last = np.where(present > 0, last, int(Source.PLAIN))
        source = np.where(slots < accepted, int(Source.ACCEPTED), last)
        drafts = np.pad(decided.draft_ids, ((0, 0), (0, 1)), constant_values=-1)
        drafts = np.where(slots < present, drafts, -1)
        position = self.done[rows, None] + slots
        row, slot = np.nonzero((slots <= accepted) & (position < length))
        at = rows[row], position[row, slot]
        self.token[at], self.slot[at] = decided.token_ids[row, slot], slot
        self.source[at], self.drafted[at] = source[row, slot], drafts[row, slot]
        self.done[rows] = np.minimum(self.done[rows] + decided.num_accepted + 1, length)

    def columns(self) -> dict[str, np.ndarray]:
        """Everything that scoring needs, each [T, L]."""
        length = self.token.shape[1]
        path = np.concatenate([self.before[:, ::-1], self.token], axis=1)
        return {
            "token": self.token,
            "slot": self.slot,
            "source": self.source,
            "drafted": self.drafted,
            "previous": path[:, 1 : length + 1],
            "second_previous": path[:, :length],
        }
