"""The embedded models: a small target, its distilled draft and its heads.

See `docs/pocket.md` for the recipe, the sources and the figures.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["HEADS", "NAMES", "path"]

#: heads by method; an installation holds those that are trained so far
HEADS = ("eagle3", "mtp", "shared_kv_mtp", "dflash", "dflash2", "dspark")
NAMES = ("target", "draft", *HEADS)


def path(name: str) -> Path:
    """Returns the folder of an embedded checkpoint.

    Args:
        name: `"target"`, `"draft"`, or a head's method.

    Returns:
        A folder that `AutoModelForCausalLM.from_pretrained` and
        `AutoTokenizer.from_pretrained` load; a head's is for `speculative_config`,
        and may be empty.

    Raises:
        ValueError: There is no such embedded model.
    """
    if name not in NAMES:
        raise ValueError(f"no embedded model {name!r}: choose one of {', '.join(NAMES)}")
    return Path(__file__).parent / name
