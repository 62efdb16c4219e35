"""Dataclasses to JSON values and back, strictly: nothing missing, nothing unknown, nothing bent."""

from __future__ import annotations

import math
import types
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from fairdraft.stats.summary import UNBOUNDED

_INFINITIES = {"inf": math.inf, "-inf": -math.inf}
T = TypeVar("T")


def encode(value: Any, path: str = "") -> Any:
    """Turns a dataclass, and what is in it, into JSON values.

    Args:
        value: Dataclasses, mappings with text keys, sequences, text, numbers, None.
        path: Where the value stands, for messages.

    Raises:
        ValueError: If something has no JSON form, such as NaN.
    """
    if is_dataclass(value) and not isinstance(value, type):
        names = (field.name for field in fields(value))
        return {name: encode(getattr(value, name), _below(path, name)) for name in names}
    if isinstance(value, dict):
        return {str(key): encode(item, _below(path, str(key))) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [encode(item, f"{path}[{at}]") for at, item in enumerate(value)]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if math.isnan(value):
            raise ValueError(f"{path} is NaN, which no report may hold")
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, np.generic | np.ndarray):
        return encode(value.tolist(), path)
    raise ValueError(f"{path} is a {type(value).__name__}, which has no JSON form")


def decode(kind: type[T], value: Any, path: str = "") -> T:
    """Makes a dataclass from JSON values.

    Args:
        kind: The dataclass; its annotations say what each field may hold.
        value: The JSON object.
        path: Where the value stands, for messages.

    Raises:
        ValueError: If a field is missing, unknown, or not of its kind; the message gives the path.
    """
    return _decode(kind, value, path)


def _decode(kind: Any, value: Any, path: str) -> Any:
    unbounded = False
    if get_origin(kind) is Annotated:
        kind, *marks = get_args(kind)
        unbounded = UNBOUNDED in marks
    if kind is Any:
        return value
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _decode_optional(kind, value, path)
    if is_dataclass(kind):
        return _decode_fields(kind, value, path)
    if origin is tuple:
        return _decode_tuple(get_args(kind), value, path)
    if origin is dict:
        items = _expect(dict, "an object", value, path).items()
        return {key: _decode(get_args(kind)[1], item, _below(path, key)) for key, item in items}
    if kind is float:
        return _decode_float(value, path, unbounded)
    if kind is int and isinstance(value, bool):
        raise ValueError(f"{path} is {value!r}, not a whole number")
    words = {str: "text", int: "a whole number", bool: "true or false"}
    return _expect(kind, words[kind], value, path)


def _decode_fields(kind: Any, value: Any, path: str) -> Any:
    _expect(dict, "an object", value, path)
    known = {field.name: field for field in fields(kind)}
    hints = _hints(kind)
    unknown = sorted(set(value) - set(known))
    if unknown:
        raise ValueError(f"{_below(path, unknown[0])} is no field of this schema")
    required = [
        name
        for name, field in known.items()
        if field.default is MISSING and field.default_factory is MISSING
    ]
    missing = [name for name in required if name not in value]
    if missing:
        raise ValueError(f"{_below(path, missing[0])} is missing")
    return kind(
        **{name: _decode(hints[name], item, _below(path, name)) for name, item in value.items()}
    )


def _decode_optional(kind: Any, value: Any, path: str) -> Any:
    options = get_args(kind)
    if value is None and type(None) in options:
        return None
    (inner,) = (option for option in options if option is not type(None))
    return _decode(inner, value, path)


def _decode_tuple(kinds: tuple[Any, ...], value: Any, path: str) -> tuple[Any, ...]:
    _expect(list, "an array", value, path)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    if len(value) != len(kinds):
        raise ValueError(f"{path} has {len(value)} items, not {len(kinds)}")
    pairs = zip(kinds, value, strict=True)
    return tuple(_decode(kind, item, f"{path}[{at}]") for at, (kind, item) in enumerate(pairs))


def _decode_float(value: Any, path: str, unbounded: bool) -> float:
    if unbounded and isinstance(value, str) and value in _INFINITIES:
        return _INFINITIES[value]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{path} is {_shown(value)}, not a number")
    return float(value)


def _expect(kind: type, words: str, value: Any, path: str) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{path or 'the document'} is {_shown(value)}, not {words}")
    return value


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    text = repr(value)
    return text if len(text) <= 40 else text[:39] + "…"
