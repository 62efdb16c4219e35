"""Masks of a grammar that were recorded from llguidance, for machines that lack the library.

    python bench/grammar_masks.py

Records `results/grammar_masks.json`: the masks of four rows within a JSON string (see
`grammar_case`) over 151,936 ids, and what matching one row takes on this machine's CPU.
"""

from __future__ import annotations

import base64
import json
import time
import zlib
from dataclasses import replace
from typing import Any, cast

import numpy as np
from conditions import ROOT, conditions
from processor_cases import Round, Shape, plan_of, text_of
from timing import spread

__all__ = ["KIND", "PATH", "RecordedGrammar", "record", "recorded_round"]

KIND = "structured_outputs, JSON"
PATH = ROOT / "bench" / "results" / "grammar_masks.json"
DEPTH, NUM_SAMPLES = 3, 101


class RecordedGrammar:
    """Says of each row what llguidance said of it; takes the place of a `GrammarState`.

    Args:
        masks: Bits of the rows of a round, uint8 [R, V / 8].
        length: Tokens before the first row, the prompt among them.
    """

    def __init__(self, masks: np.ndarray, length: int) -> None:
        self._masks, self._length = masks, length

    def mask(self, output: np.ndarray) -> np.ndarray:
        """Bits of what may follow an output, in memory of its own as the library's are."""
        # the prompt is a quarter of the history
        row = len(output) - (self._length - self._length // 4)
        return self._masks[row].copy()


def recorded_round(shape: Shape) -> Round:
    """A round of requests whose masks were recorded; its text is that of the other kinds."""
    document = json.loads(PATH.read_text())
    if shape.depth > document["depth"] or shape.vocab_size != document["vocab_size"]:
        raise ValueError(
            f"{PATH.name} has masks of {document['depth'] + 1} rows of {document['vocab_size']} "
            f"ids, not of {shape}: record them anew"
        )
    packed = zlib.decompress(base64.b64decode(document["masks"]))
    masks = np.frombuffer(packed, np.uint8).reshape(document["depth"] + 1, -1)
    # what the plan holds of the grammar is read where it is matched, and nothing is
    plan = replace(plan_of("nothing", shape.vocab_size), mask_names=("structured_outputs",))
    grammars: list[Any] = [RecordedGrammar(masks, shape.length) for _ in range(shape.batch)]
    paths = text_of(shape).paths(shape)
    return Round(paths, [plan] * shape.batch, grammars, [None] * shape.batch)


def record(vocab_size: int = 151_936) -> dict[str, Any]:
    """Masks of a round of the live grammar, and microseconds to match a row of a round anew."""
    from grammar_case import GrammarRound

    from fairdraft.engine.processing.grammar import match_grammar

    shape = Shape(1, DEPTH, 1000, vocab_size)
    own = GrammarRound(shape)
    paths, state = own.paths(), own.grammars[0]
    first = match_grammar(paths, 0, state)
    if first.rows != list(range(DEPTH + 1)) or first.broken:
        raise AssertionError("the text is none of the grammar's")
    samples = []
    for _ in range(NUM_SAMPLES):
        begin = time.perf_counter()
        match_grammar(paths, 0, state)
        samples.append(1e6 * (time.perf_counter() - begin) / (DEPTH + 1))
    packed = zlib.compress(np.stack(first.masks).tobytes(), 9)
    return {
        "grammar": KIND,
        "vocab_size": vocab_size,
        "depth": DEPTH,
        "match_us_a_row": spread(samples)._asdict(),
        "conditions": conditions(),
        "masks": base64.b64encode(packed).decode(),
    }


def main() -> None:
    """Writes the file and prints the time."""
    document = record()
    PATH.write_text(json.dumps(document, indent=1) + "\n")
    found = cast(dict[str, float], document["match_us_a_row"])
    print(
        f"{PATH.name}: {PATH.stat().st_size} bytes; matching {found['median']:.1f} us a row "
        f"({found['p25']:.1f} to {found['p75']:.1f})"
    )


if __name__ == "__main__":
    main()
