"""Plain decoding beside speculation, in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairdraft.engine import RequestOutput

NUM_PAIRS = 3

Generate = Callable[[], "list[RequestOutput]"]


@dataclass(frozen=True)
class Comparison:
    """Rates of interleaved runs.

    Attributes:
        speculative: Tokens/s of each speculative run.
        plain: Tokens/s of the plain run beside it.
        same_greedy_text: Whether both gave the same tokens; None if the text is sampled.
    """

    speculative: tuple[float, ...]
    plain: tuple[float, ...]
    same_greedy_text: bool | None

    @property
    def ratios(self) -> tuple[float, ...]:
        """Speculative over plain, pair by pair."""
        pairs = zip(self.speculative, self.plain, strict=True)
        return tuple(fast / slow if slow > 0.0 else 0.0 for fast, slow in pairs)

    @property
    def speculative_median(self) -> float:
        return median(self.speculative)

    @property
    def plain_median(self) -> float:
        return median(self.plain)

    @property
    def ratio_median(self) -> float:
        return median(self.ratios)


def compare(
    speculative: Generate,
    plain: Generate,
    *,
    greedy: bool,
    num_pairs: int = NUM_PAIRS,
    on_run: Callable[[], None] = lambda: None,
) -> Comparison:
    """Times both generators in alternating order, after one untimed plain run.

    Args:
        speculative: Generates with the speculator, warm already.
        plain: Generates without.
        greedy: Whether their texts must be equal.
        num_pairs: Timed runs of each.
        on_run: Called after each run.
    """
    plain()
    on_run()
    fast: list[float] = []
    slow: list[float] = []
    same = True
    for pair in range(num_pairs):
        sides = [(speculative, fast), (plain, slow)]
        texts = []
        for generate, rates in sides if pair % 2 == 0 else reversed(sides):
            start = time.perf_counter()
            outputs = generate()
            rates.append(num_tokens(outputs) / (time.perf_counter() - start))
            texts.append([sample.token_ids for output in outputs for sample in output.outputs])
            on_run()
        same = same and texts[0] == texts[1]
    return Comparison(tuple(fast), tuple(slow), same if greedy else None)


def num_tokens(outputs: Sequence[RequestOutput]) -> int:
    """Tokens emitted by all samples."""
    return sum(len(sample.token_ids) for output in outputs for sample in output.outputs)
