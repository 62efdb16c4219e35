"""Planted faults: each replaces one production function and counts how often it ran."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass
class CountCalls:
    """A replacement of one function.

    Attributes:
        make: From the original function to the faulty one.
        count: How often the faulty one ran.
    """

    make: Callable[[Callable[..., Any]], Callable[..., Any]]
    count: int = 0

    def plant(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> CountCalls:
        """Puts the replacement in place until the test ends."""
        faulty = self.make(getattr(owner, name))

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return faulty(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)
        return self
