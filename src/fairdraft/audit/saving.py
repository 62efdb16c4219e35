"""The state of an audit in a file: written whole or not at all, read back exactly or refused."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from fairdraft.audit.whole_file import write_text

__all__ = ["SCHEMA", "load_state", "save_state"]

SCHEMA = "fairdraft/audit-state/1"


def save_state(path: str | os.PathLike[str], state: dict[str, Any]) -> None:
    """Writes a state in one step: a crash leaves the file as it was.

    Args:
        path: The file; its folder must exist.
        state: JSON values; floats keep every bit, infinities too.

    Raises:
        OSError: If the file cannot be written, such as on a full disk; an older one still stands.
    """
    body = _dumps(state)
    head = json.dumps({"schema": SCHEMA, "digest": _digest(body)})
    write_text(path, f"{head}\n{body}\n")


def load_state(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Reads what `save_state` wrote; None if there is no such file.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it is something else or was changed; the message says what to do.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise ValueError(_foreign(path)) from None
    first, _, body = text.partition("\n")
    try:
        head = json.loads(first)
    except ValueError:
        head = None
    if not isinstance(head, dict) or "schema" not in head:
        raise ValueError(_foreign(path))
    if head["schema"] != SCHEMA:
        raise ValueError(
            f"{os.fspath(path)} is a state of schema {head['schema']!r}, and this version reads "
            f"{SCHEMA!r}; go on with the version that wrote it, or name another file"
        )
    body = body.removesuffix("\n")
    if head.get("digest") != _digest(body):
        raise ValueError(
            f"{os.fspath(path)} is damaged: its contents are not what was written; restore it from "
            "a copy, or remove it to begin anew"
        )
    return json.loads(body)


def check_same(path: str | os.PathLike[str], saved: Any, expected: Any) -> None:
    """Refuses a state of another audit, and names the first thing that differs.

    Args:
        path: For the message.
        saved: What the file says it is of.
        expected: What is being audited; JSON values.

    Raises:
        ValueError: If they differ anywhere.
    """
    # through JSON, so that tuples and lists compare
    difference = _first_difference(saved, json.loads(_dumps(expected)), "")
    if difference is None:
        return
    place, old, new = difference
    raise ValueError(
        f"{os.fspath(path)} belongs to another audit: {place} is {_short(old)} there and "
        f"{_short(new)} here; use the same subject and settings, or name another file"
    )


def _dumps(value: Any) -> str:
    # keys keep their order: sums over them are repeated bit for bit
    return json.dumps(value, separators=(",", ":"))


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


def _foreign(path: str | os.PathLike[str]) -> str:
    return (
        f"{os.fspath(path)} is no state of an audit; it is left as it is, name another file to "
        "save to"
    )


def _first_difference(old: Any, new: Any, place: str) -> tuple[str, Any, Any] | None:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            below = f"{place}.{key}" if place else key
            found = _first_difference(old.get(key), new.get(key), below)
            if found is not None:
                return found
        return None
    return None if old == new and type(old) is type(new) else (place, old, new)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
