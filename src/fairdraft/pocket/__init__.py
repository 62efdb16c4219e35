"""The embedded models: a small target, its distilled draft and its heads.

See `docs/pocket.md` for the recipe, the sources and the figures.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["NAMES", "path"]

NAMES = ("target", "draft", "eagle3")


def path(name: str) -> Path:
    """Returns the folder of an embedded checkpoint.

    Args:
        name: `"target"`, `"draft"`, or `"eagle3"` for the head.

    Returns:
        A folder that `AutoModelForCausalLM.from_pretrained` and
        `AutoTokenizer.from_pretrained` load; a head's is for `speculative_config`.

    Raises:
        ValueError: There is no such embedded model.
    """
    if name not in NAMES:
        raise ValueError(f"no embedded model {name!r}: choose one of {', '.join(NAMES)}")
    return Path(__file__).parent / name
