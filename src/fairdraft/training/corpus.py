"""Text to train heads on: documents as one flat array of ids, with a held-out part.

One corpus serves every head of a target. Axes: N ids, D documents, B windows, W ids of a window.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fairdraft.training.texts import read_documents

#: share of the documents that are held out
HELD_OUT_PERCENT = 2


@dataclass(frozen=True)
class Corpus:
    """Documents, each followed by the end token if the target has one.

    Attributes:
        ids: int32 [N].
        starts: Where each document begins, int64 [D], ascending from 0.
        counted: Which ids a head learns to draft, bool [N]; None for all. The others, such as the
            prompt and the template around an answer, are read and never drafted: the target's law
            before them has no part in a loss.

    Raises:
        ValueError: If `counted` is no bool of the shape of `ids`.
    """

    ids: Tensor
    starts: Tensor
    counted: Tensor | None = None

    def __post_init__(self) -> None:
        counted = self.counted
        if counted is not None and (counted.dtype != torch.bool or counted.shape != self.ids.shape):
            raise ValueError(
                f"counted is {counted.dtype} {list(counted.shape)}: it must be bool "
                f"{list(self.ids.shape)}, one for each id"
            )

    @classmethod
    def from_documents(
        cls,
        documents: Iterable[list[int]],
        eos_token_id: int | None,
        num_read: Sequence[int] | None = None,
    ) -> Corpus:
        """Joins documents; empty ones are left out.

        Args:
            documents: Ids of each.
            eos_token_id: Put behind each; None for nothing.
            num_read: How many ids at the beginning of each document are read only; None counts
                every id.

        Raises:
            ValueError: If there is not one such number for each document, from 0 to its length.
        """
        pieces, marks = [], []
        documents = list(documents)
        given = [0] * len(documents) if num_read is None else num_read
        if len(given) != len(documents):
            raise ValueError(f"num_read has {len(given)} numbers for {len(documents)} documents")
        for document, read in zip(documents, given, strict=True):
            if not 0 <= read <= len(document):
                raise ValueError(f"num_read = {read} of a document of {len(document)} ids")
            if not document:
                continue
            piece = document if eos_token_id is None else [*document, eos_token_id]
            pieces.append(torch.tensor(piece, dtype=torch.int32))
            marks.append(torch.arange(len(piece)) >= read)
        return _joined(pieces, None if num_read is None else marks)

    @property
    def num_documents(self) -> int:
        """How many documents there are, D."""
        return len(self.starts)

    @property
    def digest(self) -> str:
        """16 hex digits that name these documents in this order."""
        digest = hashlib.blake2b(digest_size=8)
        for part in (self.starts, self.ids, self.counted):
            if part is not None:
                digest.update(part.cpu().numpy().tobytes())
        return digest.hexdigest()

    def to(self, device: str | torch.device) -> Corpus:
        """The same corpus on another device."""
        counted = None if self.counted is None else self.counted.to(device)
        return Corpus(self.ids.to(device), self.starts.to(device), counted)

    @property
    def counted_ids(self) -> Tensor:
        """The ids that a head learns to draft, in their order."""
        return self.ids if self.counted is None else self.ids[self.counted]

    def split(self) -> tuple[Corpus, Corpus]:
        """Training and held-out documents, by a hash of each document's ids; never one empty.

        Raises:
            ValueError: If there are fewer than two documents.
        """
        if self.num_documents < 2:
            raise ValueError(
                f"the corpus holds {self.num_documents} documents; at least 2 are needed, one to "
                "train on and one held out"
            )
        documents, marks = self._documents(), self._marks()
        held_out = [i for i, document in enumerate(documents) if _is_held_out(document)]
        held_out = held_out or [len(documents) - 1]
        chosen = set(held_out if len(held_out) < len(documents) else held_out[1:])

        def part(numbers: list[int]) -> Corpus:
            kept = None if marks is None else [marks[i] for i in numbers]
            return _joined([documents[i] for i in numbers], kept)

        everything = range(len(documents))
        return part([i for i in everything if i not in chosen]), part(sorted(chosen))

    def windows(self, batch: int, width: int, generator: torch.Generator) -> Tensor:
        """Draws windows of consecutive ids, int64 [B, W]; half of them begin with a document."""
        return self.ids[self.places(batch, width, generator)].long()

    def counted_after(self, places: Tensor) -> Tensor | None:
        """Whether the id after each place counts, bool [B, W]; None if all do.

        The first document follows the last one, as any other could.
        """
        return None if self.counted is None else self.counted[(places + 1) % len(self.ids)]

    def places(self, batch: int, width: int, generator: torch.Generator) -> Tensor:
        """Where the windows of `windows` lie, int64 [B, W]."""
        limit = len(self.ids) - width
        assert limit >= 0, "the corpus is shorter than a window"
        device = self.ids.device
        anywhere = torch.randint(limit + 1, (batch,), generator=generator, device=device)
        which = torch.randint(len(self.starts), (batch,), generator=generator, device=device)
        at_start = torch.arange(batch, device=device) % 2 == 1
        begin = torch.where(at_start, self.starts[which].clamp(max=limit), anywhere)
        return begin[:, None] + torch.arange(width, device=device)

    def prompts(self, count: int, length: int) -> list[list[int]]:
        """The first `length` ids of up to `count` documents that are longer, spread over all.

        Of a document that is read at first, what stands before the first id that counts instead.
        """
        if self.counted is not None:
            return self._read_prompts(count, length)
        ends = torch.cat([self.starts[1:], torch.tensor([len(self.ids)]).to(self.starts.device)])
        long = self.starts[(ends - self.starts) > length].tolist()
        every = max(1, len(long) // count)
        return [self.ids[start : start + length].tolist() for start in long[::every][:count]]

    def save(self, path: Path) -> None:
        """Writes a safetensors file that `read_corpus` takes as it is."""
        parts = {"ids": self.ids, "starts": self.starts, "counted": self.counted}
        save_file({name: part.cpu() for name, part in parts.items() if part is not None}, path)
        path.chmod(0o644)

    def _read_prompts(self, count: int, length: int) -> list[list[int]]:
        found = []
        for ids, marks in zip(self._documents(), self._marks() or [], strict=True):
            first = int(marks.int().argmax())
            end = first or length
            if bool(marks[first]) and len(ids) > end:
                found.append(ids[:end].tolist())
        return found[:: max(1, len(found) // count)][:count]

    def _documents(self) -> list[Tensor]:
        return self._pieces(self.ids)

    def _marks(self) -> list[Tensor] | None:
        return None if self.counted is None else self._pieces(self.counted)

    def _pieces(self, values: Tensor) -> list[Tensor]:
        return list(values.cpu().tensor_split(self.starts[1:].cpu()))


def read_corpus(paths: Iterable[str | Path], tokenizer: Any, vocab_size: int) -> Corpus:
    """Reads text files as `read_documents` says, and saved corpora.

    Args:
        paths: Files.
        tokenizer: The target's, or None if only saved corpora are read.
        vocab_size: Ids of the target.

    Raises:
        ValueError: If a file cannot be read, or holds no usable text.
    """
    documents: list[tuple[list[int], int]] = []
    saved: list[Corpus] = []
    for path in map(Path, paths):
        if path.suffix == ".safetensors":
            saved.append(_load(path, vocab_size))
            continue
        if tokenizer is None:
            raise ValueError(f"{str(path)!r} is text, and the target has no tokenizer to read it")
        documents += read_documents(path, tokenizer)
    eos = None if tokenizer is None else tokenizer.eos_token_id
    read = [count for _, count in documents]
    texts = Corpus.from_documents((ids for ids, _ in documents), eos, read if any(read) else None)
    corpus = _merged([*saved, texts])
    if not corpus.num_documents:
        names = ", ".join(str(path) for path in paths) or "no file"
        raise ValueError(
            f"{names}: no usable text; pass .txt files, .jsonl files whose lines are objects with "
            "a 'text' or with 'messages', or a saved corpus"
        )
    return corpus


def _load(path: Path, vocab_size: int) -> Corpus:
    try:
        found = load_file(path)
        corpus = Corpus(found["ids"].int(), found["starts"].long(), found.get("counted"))
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"{str(path)!r} is no saved corpus: {error}") from error
    if len(corpus.ids) and not 0 <= int(corpus.ids.min()) <= int(corpus.ids.max()) < vocab_size:
        raise ValueError(
            f"{str(path)!r} holds id {int(corpus.ids.max())}; the target has 0 to "
            f"{vocab_size - 1}: it was made with another tokenizer"
        )
    return corpus


def _merged(corpora: list[Corpus]) -> Corpus:
    """All documents of at least two ids; one that marks no ids counts all of its own."""
    documents = [d for corpus in corpora for d in corpus._documents()]
    kept = [i for i, d in enumerate(documents) if len(d) > 1]
    marks = None
    if any(corpus.counted is not None for corpus in corpora):
        marks = [m for corpus in corpora for m in corpus._marks() or map(_all, corpus._documents())]
        marks = [marks[i] for i in kept]
    return _joined([documents[i] for i in kept], marks)


def _all(document: Tensor) -> Tensor:
    return torch.ones(len(document), dtype=torch.bool)


def _joined(documents: list[Tensor], marks: list[Tensor] | None) -> Corpus:
    sizes = torch.tensor([len(document) for document in documents], dtype=torch.int64)
    ids = torch.cat(documents) if documents else torch.zeros(0, dtype=torch.int32)
    counted = None
    if marks is not None:
        counted = torch.cat(marks) if marks else torch.zeros(0, dtype=torch.bool)
    return Corpus(ids, sizes.cumsum(0) - sizes, counted)


def _is_held_out(document: Tensor) -> bool:
    digest = hashlib.blake2b(document.numpy().tobytes(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % 100 < HELD_OUT_PERCENT
