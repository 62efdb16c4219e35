"""The embedded models: a small target, its distilled draft and its heads.

See `docs/pocket.md` for the recipe, the sources and the figures.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["HEADS", "HEAD_NAMES", "NAMES", "installed_heads", "path"]

#: heads by method
HEADS = ("eagle3", "mtp", "shared_kv_mtp", "dflash", "dflash2", "dspark")
NAMES = ("target", "draft", *HEADS)
#: what heads are called where a model is named, to their methods
HEAD_NAMES = {f"pocket-{method}": method for method in HEADS}


def path(name: str) -> Path:
    """Returns the folder of an embedded checkpoint.

    Args:
        name: `"target"`, `"draft"`, or a head's method.

    Returns:
        A folder that `AutoModelForCausalLM.from_pretrained` and
        `AutoTokenizer.from_pretrained` load; a head's is for `speculative_config`.

    Raises:
        ValueError: There is no such embedded model.
    """
    if name not in NAMES:
        raise ValueError(f"no embedded model {name!r}: choose one of {', '.join(NAMES)}")
    return Path(__file__).parent / name


def installed_heads() -> list[str]:
    """Names of the heads that this installation holds, such as "pocket-mtp"."""
    return [name for name, head in HEAD_NAMES.items() if (path(head) / "config.json").is_file()]
