"""The state file: whole or not at all, exact, and refused if it is not what was written."""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path
from typing import Any

import pytest

from fairdraft.audit.saving import SCHEMA, check_same, load_state, save_state

STATE = {"a": [1, 0.1 + 0.2, math.inf, -math.inf], "b": {"c": None}, "d": "é"}


def test_what_is_saved_comes_back_bit_for_bit(tmp_path: Path) -> None:
    path = tmp_path / "audit.state"
    assert load_state(path) is None
    save_state(path, STATE)
    assert load_state(path) == STATE
    assert os.listdir(tmp_path) == ["audit.state"]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.state"
    save_state(path, STATE)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_state(path, {"a": 2})
    assert load_state(path) == STATE
    assert os.listdir(tmp_path) == ["audit.state"]


@pytest.mark.parametrize("text", ["", "notes\n", "[1]\n{}\n", "{}\n{}\n", "\xff"])
def test_a_foreign_file_is_refused_and_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "audit.state"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match="no state of an audit.*name another file"):
        load_state(path)
    assert path.read_bytes() == text.encode("latin-1")


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "audit.state"
    save_state(path, STATE)
    text = path.read_text()
    path.write_text(text.replace('"b"', '"B"'))
    with pytest.raises(ValueError, match="damaged"):
        load_state(path)
    path.write_text(text[: len(text) // 2 + 40])
    with pytest.raises(ValueError, match="damaged"):
        load_state(path)


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "audit.state"
    save_state(path, STATE)
    head, body = path.read_text().split("\n", 1)
    path.write_text(head.replace(SCHEMA, "fairdraft/audit-state/2") + "\n" + body)
    with pytest.raises(ValueError, match="schema 'fairdraft/audit-state/2'"):
        load_state(path)


@pytest.mark.parametrize(
    ("saved", "expected", "message"),
    [
        ({"eps": 0.01}, {"eps": 0.02}, "eps is 0.01 there and 0.02 here"),
        ({"a": {"b": "x"}}, {"a": {"b": "y"}}, 'a.b is "x" there and "y" here'),
        ({"a": 1}, {}, "a is 1 there and null here"),
    ],
)
def test_another_audit_is_refused_by_what_differs(saved: Any, expected: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_same("audit.state", saved, expected)
    check_same("audit.state", expected, expected)
