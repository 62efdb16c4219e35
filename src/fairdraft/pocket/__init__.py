"""The embedded model pair: a small target and its distilled draft, in Hugging Face format.

See `docs/pocket.md` for the recipe, the sources and the figures.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["NAMES", "path"]

NAMES = ("target", "draft")


def path(name: str) -> Path:
    """Returns the folder of an embedded checkpoint.

    Args:
        name: `"target"` or `"draft"`.

    Returns:
        A folder that `AutoModelForCausalLM.from_pretrained` and
        `AutoTokenizer.from_pretrained` load.

    Raises:
        ValueError: There is no such embedded model.
    """
    if name not in NAMES:
        raise ValueError(f"no embedded model {name!r}: choose one of {', '.join(NAMES)}")
    return Path(__file__).parent / name
