"""Records every decision of the engine, to tell a rounding tie from a bug."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from fairdraft import ops

#: a mismatch is a tie if the draw's margin is below this many times the paths' logit difference
TIE_FACTOR = 4.0


@dataclass
class Decision:
    """One emitted token: its id, how far the decision was from another, the target's row."""

    token_id: int
    margin: float
    logits: np.ndarray


@dataclass
class Recorder:
    """Decisions of one run by (key, sample, position)."""

    decisions: dict[tuple[int, int, int], Decision] = field(default_factory=dict)

    def wrap(self, monkeypatch: pytest.MonkeyPatch) -> Recorder:
        """Watches the engine's calls of `ops.verify_chain` until the patch is undone."""
        inner = ops.verify_chain

        def watched(target_logits: Any, *args: Any, **kwargs: Any) -> ops.Verdict:
            verdict = inner(target_logits, *args, **kwargs)
            self._note(target_logits, verdict, kwargs)
            return verdict

        monkeypatch.setattr(ops, "verify_chain", watched)
        return self

    def _note(self, target_logits: Any, verdict: ops.Verdict, call: dict[str, Any]) -> None:
        for b, emitted in enumerate(verdict.num_emitted_tokens.tolist()):
            for i in range(emitted):
                name = (int(call["key"][b]), int(call["sample"][b]), int(call["anchor"][b]) + i)
                self.decisions[name] = Decision(
                    int(verdict.token_ids[b, i]),
                    float(verdict.margin[b, i]),
                    target_logits[b, i].numpy().astype(np.float32),
                )


@dataclass
class Comparison:
    """Two runs token by token, each sequence up to its first difference.

    Attributes:
        num_tokens: Tokens compared.
        largest_difference: Largest difference of the two paths' target logits.
        mismatches: (key, sample, position) and the smaller margin of each first difference.
    """

    num_tokens: int = 0
    largest_difference: float = 0.0
    mismatches: list[tuple[tuple[int, int, int], float]] = field(default_factory=list)

    @property
    def num_ties(self) -> int:
        """Mismatches that rounding explains."""
        limit = TIE_FACTOR * self.largest_difference
        return sum(margin < limit for _, margin in self.mismatches)

    def check(self) -> None:
        """Every mismatch is a tie, and ties are at most 1 in 10,000 tokens."""
        assert self.num_ties == len(self.mismatches), str(self)
        assert self.num_ties <= self.num_tokens / 10_000, str(self)

    def __str__(self) -> str:
        return (
            f"{self.num_tokens} tokens, {len(self.mismatches)} mismatches, {self.num_ties} ties, "
            f"largest logit difference {self.largest_difference:.2e}"
        )


def compare(first: Recorder, second: Recorder) -> Comparison:
    """Compares what both runs decided, sequence by sequence."""
    result = Comparison()
    ended: set[tuple[int, int]] = set()
    for name in sorted(first.decisions):
        key, sample, _ = name
        if (key, sample) in ended or name not in second.decisions:
            continue
        a, b = first.decisions[name], second.decisions[name]
        both = np.isfinite(a.logits) & np.isfinite(b.logits)
        difference = float(np.abs(a.logits[both] - b.logits[both]).max())
        result.largest_difference = max(result.largest_difference, difference)
        result.num_tokens += 1
        if a.token_id != b.token_id:
            result.mismatches.append((name, min(a.margin, b.margin)))
            ended.add((key, sample))
    return result
