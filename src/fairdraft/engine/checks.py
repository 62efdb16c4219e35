"""Checks of single values that callers pass in."""

from __future__ import annotations

import math
import operator
from typing import Any


def check_number(name: str, value: Any) -> float:
    """Returns `value` as a float; a bool, a string or NaN raises ValueError."""
    if isinstance(value, (bool, str)) or not hasattr(value, "__float__"):
        raise ValueError(f"{name}={value!r}: must be a number, not {type(value).__name__}")
    number = float(value)
    if math.isnan(number):
        raise ValueError(f"{name}={value!r}: must be a number, not NaN")
    return number


def check_integer(name: str, value: Any, hint: str = "") -> int:
    """Returns `value` as an int; a bool, a float or a string raises ValueError."""
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise ValueError(f"{name}={value!r}: must be an int, not {type(value).__name__}{hint}")
