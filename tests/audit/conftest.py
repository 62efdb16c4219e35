"""What several audit tests share: a server to audit, and quiet arithmetic under a mask."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.audit.fake_server import FakeServer, fake_server


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server() as running:
        yield running


@pytest.fixture
def numpy_may_warn() -> Iterator[None]:
    """The interpreter computes what a mask then drops."""
    with np.errstate(all="ignore"):
        yield
