"""Kernels on the CPU run in Triton's interpreter, which `tests/conftest.py` switches on.

On a machine with a GPU they are compiled, and `test_gpu*.py` run them; they need no other conftest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np
import pytest

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

# kernels cannot even be imported where there is no Triton (it is on Linux alone)
collect_ignore_glob = [] if find_spec("triton") else ["test_*.py"]


@pytest.fixture(autouse=True)
def interpreter(request: pytest.FixtureRequest) -> Iterator[None]:
    """Skips where kernels run otherwise; NumPy may warn of NaN and inf that rows hold."""
    is_gpu_test = request.node.get_closest_marker("gpu") is not None
    if is_gpu_test == IS_INTERPRETED:
        pytest.skip(f"TRITON_INTERPRET={os.environ.get('TRITON_INTERPRET', '')}")
    with np.errstate(all="ignore"):
        yield
