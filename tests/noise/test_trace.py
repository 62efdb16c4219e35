"""The trace fails on one address with two digests, and on nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from fairdraft import noise
from fairdraft.noise import Discard, Role, Stream, Trace, TraceError
from fairdraft.noise.trace import digest


def draft_at(position: int, key: int = 1) -> noise.Address:
    return noise.address(Stream.DRAFT, key=key, position=position, anchor=4, node=1, sample=2)


def test_a_replay_is_no_collision() -> None:
    trace = Trace()
    for _ in range(2):
        trace.record(draft_at(5), [b"same"])
    trace.check()
    assert len(trace) == 1


def test_a_second_digest_is_a_collision_that_names_its_address() -> None:
    trace = Trace()
    trace.record(draft_at(5), [b"one"])
    trace.record(draft_at(6), [b"two"])
    trace.record(draft_at(5, key=2), [b"two"])
    trace.check()
    trace.record(draft_at(5), [b"two"])
    with pytest.raises(TraceError, match="DRAFT draw at position 5, anchor 4, node 1, sample 2"):
        trace.check()


def test_a_value_blind_discard_frees_the_address() -> None:
    trace = Trace()
    trace.record(draft_at(5), [b"one"])
    assert trace.discard(1, 4, Discard.LOAD, sample=0) == 0
    assert trace.discard(1, 4, Discard.LOAD, sample=2) == 1
    trace.record(draft_at(5), [b"two"])
    trace.check()
    trace.record(draft_at(5), [b"three"])
    assert len(trace.collisions) == 1


def test_only_value_blind_reasons_exist() -> None:
    with pytest.raises(ValueError, match="low acceptance"):
        Trace().discard(1, 4, "low acceptance")  # type: ignore[arg-type]


def test_guesses_share_an_address_and_are_logged_apart() -> None:
    trace = Trace()
    at = noise.address(Stream.TARGET, key=1, position=5)
    for digest_ in (b"one", b"two", b"one"):
        trace.for_guesses().record(at, [digest_])
    trace.record(at, [b"target"])
    trace.check()
    assert len(trace) == 1 and [use.role for use in trace] == [Role.DECISION]
    assert [(use.role, use.digest) for use in trace.guesses] == [
        (Role.GUESS, b"one"),
        (Role.GUESS, b"two"),
    ]
    trace.record(at, [b"other"])
    assert len(trace.collisions) == 1


def test_digest_reads_values_not_layout() -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert digest(values[:, 1]) == digest(values[:, 1].copy())
    assert digest(values[0]) != digest(values[1])
