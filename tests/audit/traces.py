"""Traces for the tests of recorder and reader: a small decoder, recorded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fairdraft.audit.recorder import Recorder, record_tokens
from fairdraft.audit.subjects.markov import Decoding, MarkovPair
from fairdraft.audit.subjects.toy import ToySubject
from fairdraft.audit.trace_schema import TraceHeader

P8 = np.array([0.30, 0.20, 0.15, 0.10, 0.10, 0.05, 0.05, 0.05])
NUM_TEXTS, LENGTH = 64, 16


def toy(method: Any = "gumbel", **options: Any) -> ToySubject:
    """Three drafts a round, drafts that rank opposite."""
    decoding = Decoding(3, method=method, **options)
    pair = MarkovPair.shuffled(P8, P8[::-1], seed=5)
    return ToySubject(pair, decoding, length=LENGTH, texts_per_batch=NUM_TEXTS)


def header_of(subject: Any, **changes: Any) -> TraceHeader:
    """The header under which a subject's scored tokens are recorded."""
    info = subject.info
    fields: dict[str, Any] = {
        "vocab_size": info.parameters["vocab_size"],
        "params": {k: v for k, v in info.parameters.items() if k != "vocab_size"},
        "engine": info.name,
        "sampler": info.sampler,
        "rule": info.rule,
        "speculative": info.is_speculative,
        "eps0": info.default_eps0,
    }
    return TraceHeader(**(fields | changes))


def record(subject: Any, path: Path, num_tokens: int, **changes: Any) -> None:
    """Records a subject's batches until there are so many tokens."""
    with Recorder(path, header_of(subject, **changes)) as recorder:
        for batch in subject.batches():
            record_tokens(recorder, batch.tokens)
            if recorder.num_tokens >= num_tokens:
                return


def documents(path: Path) -> list[dict[str, Any]]:
    """The lines of a plain trace."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(path: Path, lines: list[dict[str, Any]]) -> Path:
    """Writes lines as they are."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def plain_lines(num_texts: int = 3, length: int = 4) -> list[dict[str, Any]]:
    """A header and lines written by hand: one draft a round, lists of numbers."""
    generator = np.random.default_rng(7)
    lines: list[dict[str, Any]] = [
        {
            "schema": "fairdraft/trace/1",
            "vocab_size": 4,
            "params": {"temperature": 1.0},
            "laws": "processed",
            "values": "probabilities",
            "speculative": True,
        }
    ]
    for text in range(num_texts):
        for position in range(length):
            token = int(generator.choice(4, p=[0.4, 0.3, 0.2, 0.1]))
            lines.append(
                {
                    "request": f"r{text}",
                    "seed": text,
                    "prompt": "same",
                    "position": position,
                    "slot": position % 2,
                    "token": token,
                    "source": "unknown" if position % 2 == 0 else "bonus",
                    "target": [0.4, 0.3, 0.2, 0.1],
                    **({"draft": [0.1, 0.2, 0.3, 0.4]} if position % 2 == 0 else {}),
                }
            )
    return lines


Edit = Callable[[list[dict[str, Any]]], None]
