"""Options whose value is a JSON object."""

from __future__ import annotations

import json
from typing import Any

from fairdraft.cli.failure import UsageFault


def read_object(option: str, text: str, example: str) -> dict[str, Any]:
    """Reads the object that an option was given.

    Args:
        option: As it is written on the command line.
        text: Its value.
        example: An object that would do.

    Raises:
        UsageFault: If the text is no JSON object.
    """
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageFault(f"{option} {text!r} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise UsageFault(f"{option} {text!r} is no JSON object; write e.g. '{example}'")
    return found
