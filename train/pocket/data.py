"""Documents on disk, the held-out split, and batches of token windows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast


def read_documents(path: Path) -> Iterator[dict[str, str]]:
    """Yields the documents of a JSON-lines file; each has at least a `text`."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def write_documents(path: Path, documents: Iterable[dict[str, str]]) -> None:
    """Writes documents as JSON lines."""
    with path.open("w", encoding="utf-8") as out:
        for document in documents:
            out.write(json.dumps(document, ensure_ascii=False) + "\n")


def is_held_out(document: dict[str, str], percent: int = 2) -> bool:
    """Says whether a document belongs to the held-out split.

    The split goes by the document's `prompt` where it has one, so that no prompt has answers on
    both sides, and by its text otherwise.
    """
    name = document.get("prompt") or document["text"]
    digest = hashlib.blake2b(name.encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % 100 < percent


@dataclass
class Tokens:
    """Documents as one flat array: every document is followed by the end token."""

    ids: torch.Tensor
    starts: torch.Tensor

    @property
    def num_documents(self) -> int:
        """How many documents there are."""
        return len(self.starts)

    def document(self, index: int) -> list[int]:
        """The ids of one document, without its end token."""
        end = self.starts[index + 1] if index + 1 < len(self.starts) else len(self.ids)
        return self.ids[self.starts[index] : end - 1].tolist()

    def join(self, other: Tokens) -> Tokens:
        """These documents, then the other ones."""
        starts = torch.cat([self.starts, other.starts + len(self.ids)])
        return Tokens(torch.cat([self.ids, other.ids]), starts)

    def to(self, device: str) -> Tokens:
        """The same tokens on another device."""
        return Tokens(self.ids.to(device), self.starts.to(device))


def encode(texts: list[str], tokenizer: PreTrainedTokenizerFast) -> Tokens:
    """Encodes documents in order, ids as int32 [N]."""
    eos = tokenizer.convert_tokens_to_ids(tokenizer.eos_token)
    pieces, starts, length = [], [], 0
    for begin in range(0, len(texts), 10_000):
        batch = tokenizer.backend_tokenizer.encode_batch(texts[begin : begin + 10_000])
        for encoding in batch:
            starts.append(length)
            pieces.append(np.array([*encoding.ids, eos], dtype=np.int32))
            length += len(pieces[-1])
    return Tokens(torch.from_numpy(np.concatenate(pieces)), torch.tensor(starts))


def window_batch(
    tokens: Tokens, batch: int, length: int, generator: torch.Generator
) -> torch.Tensor:
    """Draws windows of `length + 1` ids, int64 [batch, length + 1].

    Half of the windows begin with a document, half anywhere.
    """
    device = tokens.ids.device
    limit = len(tokens.ids) - length - 1
    anywhere = torch.randint(limit, (batch,), generator=generator, device=device)
    which = torch.randint(len(tokens.starts), (batch,), generator=generator, device=device)
    begin = torch.where(torch.arange(batch, device=device) % 2 == 0, anywhere, tokens.starts[which])
    index = begin.clamp(max=limit)[:, None] + torch.arange(length + 1, device=device)
    return tokens.ids[index].long()
