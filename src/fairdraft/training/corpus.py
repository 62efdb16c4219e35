"""Text to train heads on: documents as one flat array of ids, with a held-out part.

One corpus serves every head of a target. Axes: N ids, D documents, B windows, W ids of a window.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

#: share of the documents that are held out
HELD_OUT_PERCENT = 2


@dataclass(frozen=True)
class Corpus:
    """Documents, each followed by the end token if the target has one.

    Attributes:
        ids: int32 [N].
        starts: Where each document begins, int64 [D], ascending from 0.
    """

    ids: Tensor
    starts: Tensor

    @classmethod
    def from_documents(cls, documents: Iterable[list[int]], eos_token_id: int | None) -> Corpus:
        """Joins documents; empty ones are left out."""
        pieces, sizes = [], []
        for document in documents:
            if not document:
                continue
            piece = document if eos_token_id is None else [*document, eos_token_id]
            pieces.append(torch.tensor(piece, dtype=torch.int32))
            sizes.append(len(piece))
        lengths = torch.tensor(sizes, dtype=torch.int64)
        ids = torch.cat(pieces) if pieces else torch.zeros(0, dtype=torch.int32)
        return cls(ids, lengths.cumsum(0) - lengths)

    @property
    def num_documents(self) -> int:
        """How many documents there are, D."""
        return len(self.starts)

    @property
    def digest(self) -> str:
        """16 hex digits that name these documents in this order."""
        digest = hashlib.blake2b(digest_size=8)
        for part in (self.starts, self.ids):
            digest.update(part.cpu().numpy().tobytes())
        return digest.hexdigest()

    def to(self, device: str | torch.device) -> Corpus:
        """The same corpus on another device."""
        return Corpus(self.ids.to(device), self.starts.to(device))

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
        documents = list(self._documents())
        held_out = [i for i, document in enumerate(documents) if _is_held_out(document)]
        held_out = held_out or [len(documents) - 1]
        chosen = set(held_out if len(held_out) < len(documents) else held_out[1:])
        train = [d for i, d in enumerate(documents) if i not in chosen]
        other = [d for i, d in enumerate(documents) if i in chosen]
        return _joined(train), _joined(other)

    def windows(self, batch: int, width: int, generator: torch.Generator) -> Tensor:
        """Draws windows of consecutive ids, int64 [B, W]; half of them begin with a document."""
        limit = len(self.ids) - width
        assert limit >= 0, "the corpus is shorter than a window"
        device = self.ids.device
        anywhere = torch.randint(limit + 1, (batch,), generator=generator, device=device)
        which = torch.randint(len(self.starts), (batch,), generator=generator, device=device)
        at_start = torch.arange(batch, device=device) % 2 == 1
        begin = torch.where(at_start, self.starts[which].clamp(max=limit), anywhere)
        return self.ids[begin[:, None] + torch.arange(width, device=device)].long()

    def prompts(self, count: int, length: int) -> list[list[int]]:
        """The first `length` ids of up to `count` documents that are longer, spread over all."""
        ends = torch.cat([self.starts[1:], torch.tensor([len(self.ids)]).to(self.starts.device)])
        long = self.starts[(ends - self.starts) > length].tolist()
        every = max(1, len(long) // count)
        return [self.ids[start : start + length].tolist() for start in long[::every][:count]]

    def save(self, path: Path) -> None:
        """Writes a safetensors file that `read_corpus` takes as it is."""
        save_file({"ids": self.ids.cpu(), "starts": self.starts.cpu()}, path)
        path.chmod(0o644)

    def _documents(self) -> Iterator[Tensor]:
        return iter(self.ids.cpu().tensor_split(self.starts[1:].cpu()))


def read_corpus(paths: Iterable[str | Path], tokenizer: Any, vocab_size: int) -> Corpus:
    """Reads text files: `.txt` one document each, `.jsonl` one `text` a line, or a saved corpus.

    Args:
        paths: Files.
        tokenizer: The target's, or None if only saved corpora are read.
        vocab_size: Ids of the target.

    Raises:
        ValueError: If a file cannot be read, or holds no usable text.
    """
    documents: list[list[int]] = []
    saved: list[Corpus] = []
    for path in map(Path, paths):
        if path.suffix == ".safetensors":
            saved.append(_load(path, vocab_size))
            continue
        if tokenizer is None:
            raise ValueError(f"{str(path)!r} is text, and the target has no tokenizer to read it")
        documents += [tokenizer(text)["input_ids"] for text in _texts(path) if text.strip()]
    eos = None if tokenizer is None else tokenizer.eos_token_id
    corpora = [*saved, Corpus.from_documents(documents, eos)]
    corpus = _joined([d for corpus in corpora for d in corpus._documents() if len(d) > 1])
    if not corpus.num_documents:
        names = ", ".join(str(path) for path in paths) or "no file"
        raise ValueError(
            f"{names}: no usable text; pass .txt files, .jsonl files whose lines are objects with "
            "a 'text', or a saved corpus"
        )
    return corpus


def _texts(path: Path) -> Iterator[str]:
    if not path.is_file():
        raise ValueError(f"no such file: {str(path)!r}")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{str(path)!r} is no UTF-8 text: {error.reason}") from error
    if path.suffix != ".jsonl":
        yield text
        return
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            document = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{str(path)!r}, line {number} is no JSON: {error}") from error
        found = document.get("text") if isinstance(document, dict) else None
        if not isinstance(found, str):
            raise ValueError(f"{str(path)!r}, line {number} is no object with a 'text'")
        yield found


def _load(path: Path, vocab_size: int) -> Corpus:
    try:
        found = load_file(path)
        corpus = Corpus(found["ids"].int(), found["starts"].long())
    except (OSError, SafetensorError, KeyError) as error:
        raise ValueError(f"{str(path)!r} is no saved corpus: {error}") from error
    if len(corpus.ids) and not 0 <= int(corpus.ids.min()) <= int(corpus.ids.max()) < vocab_size:
        raise ValueError(
            f"{str(path)!r} holds id {int(corpus.ids.max())}; the target has 0 to "
            f"{vocab_size - 1}: it was made with another tokenizer"
        )
    return corpus


def _joined(documents: list[Tensor]) -> Corpus:
    sizes = torch.tensor([len(document) for document in documents], dtype=torch.int64)
    ids = torch.cat(documents) if documents else torch.zeros(0, dtype=torch.int32)
    return Corpus(ids, sizes.cumsum(0) - sizes)


def _is_held_out(document: Tensor) -> bool:
    digest = hashlib.blake2b(document.numpy().tobytes(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % 100 < HELD_OUT_PERCENT
