"""What every test gets: one thread a worker, clean generators, poisoned memory for the ops."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# a run on the same tree always tries the same examples, on a laptop and in CI
settings.register_profile("fairdraft", derandomize=True, deadline=None)
settings.load_profile("fairdraft")

# read by the libraries when they load, so it has to happen before any of them
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    if "PYTEST_XDIST_WORKER" in os.environ:
        os.environ[_name] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def interpret_kernels_without_a_gpu() -> None:
    """Triton reads this when it loads, and libraries that tests import load it."""
    import torch

    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")


interpret_kernels_without_a_gpu()

ROOT = Path(__file__).resolve().parent.parent
PURE_ROOMS = ("noise", "ops", "stats")
POISONED_ROOMS = ("ops",)


def room_of(request: pytest.FixtureRequest) -> str:
    """First folder below tests/ of the test that asks, or ''."""
    parts = Path(request.path).relative_to(ROOT / "tests").parts
    return parts[0] if len(parts) > 1 else ""


def generator_states() -> dict[str, bytes]:
    """State of each global generator that is loaded."""
    states: dict[str, bytes] = {}
    if (numpy := sys.modules.get("numpy")) is not None:
        name, key, *rest = numpy.random.get_state()
        states["numpy.random"] = repr((name, key.tobytes(), rest)).encode()
    if (torch := sys.modules.get("torch")) is not None:
        states["torch"] = torch.random.get_rng_state().numpy().tobytes()
    return states


@contextmanager
def refuse_global_draws() -> Iterator[None]:
    """Fails if the block draws from, or seeds, numpy's or torch's global generator."""
    before = generator_states()
    yield
    after = generator_states()
    touched = [name for name in before if before[name] != after[name]]
    assert not touched, f"global generator used: {', '.join(touched)}"


@pytest.fixture
def no_global_draws() -> Callable[[], AbstractContextManager[None]]:
    """`with no_global_draws(): ...` around the production call, where set-up may draw."""
    return refuse_global_draws


@pytest.fixture(autouse=True)
def pure_rooms_leave_global_generators_alone(request: pytest.FixtureRequest) -> Iterator[None]:
    """In the rooms that only take explicit noise, a whole test may not touch them."""
    if room_of(request) not in PURE_ROOMS:
        yield
        return
    with refuse_global_draws():
        yield


def poison(tensor: Any) -> Any:
    """Fills fresh memory with values that no result may contain."""
    import torch

    if tensor.is_floating_point():
        return tensor.fill_(float("nan"))
    if tensor.dtype in (torch.int64, torch.int32, torch.int16, torch.int8):
        return tensor.fill_(torch.iinfo(tensor.dtype).min)
    return tensor


@pytest.fixture(autouse=True)
def poisoned_memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes torch.empty and its relatives return NaN or the smallest integer in ops tests."""
    if room_of(request) not in POISONED_ROOMS:
        return
    import torch

    def poisoned(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: poison(function(*args, **kwargs))

    for owner, name in (
        (torch, "empty"),
        (torch, "empty_like"),
        (torch, "empty_strided"),
        (torch.Tensor, "new_empty"),
    ):
        monkeypatch.setattr(owner, name, poisoned(getattr(owner, name)))
