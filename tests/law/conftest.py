"""What the law tests share: a memo for the reference, whose arithmetic is slow and pure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fairdraft.ops import block, chain, tree


@pytest.fixture
def remembered_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference walks look a row's weights up by its bits: the same numbers, sooner."""
    compute = chain.row_weights
    known: dict[tuple[bytes, float], Any] = {}

    def remembered(logits: np.ndarray, c: np.float32) -> Any:
        name = (logits.tobytes(), float(c))
        if name not in known:
            known[name] = compute(logits, c)
        return known[name]

    for module in (chain, block, tree):
        monkeypatch.setattr(module, "row_weights", remembered)
