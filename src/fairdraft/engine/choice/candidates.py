"""Which speculators a target has at hand without a word from the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fairdraft import pocket
from fairdraft.engine.config import SpeculativeConfig, infer_method
from fairdraft.models import CausalLM

T = TypeVar("T")

#: methods that draft for any target; others need a model, or something of each request
_FROM_TEXT = ("ngram", "suffix")
_POCKET_DRAFT = "pocket-draft"


@dataclass(frozen=True)
class Candidate:
    """One way to speculate.

    Attributes:
        name: What tables call it.
        config: vLLM's dictionary, without K where K is still open.
        is_asked: Whether the caller named it, so that it must not be passed over.
    """

    name: str
    config: dict[str, Any]
    is_asked: bool = False


def available(target: CausalLM) -> list[Candidate]:
    """What can draft for a target: its embedded drafters, its own modules, and its text.

    Args:
        target: "pocket" has every embedded drafter of this installation; any other target the
            modules for multi-token prediction that its own folder brings.
    """
    configs: list[dict[str, Any]] = []
    if target.name in ("pocket", str(pocket.path("target"))):
        configs += [config for config, folder in embedded() if (folder / "config.json").is_file()]
    elif getattr(target.model.config, "num_nextn_predict_layers", 0) and Path(target.name).is_dir():
        configs.append({"method": "mtp", "model": target.name})
    return named([*configs, *from_text()])


def embedded() -> list[tuple[dict[str, Any], Path]]:
    """The drafters of "pocket" and their folders, which an installation may lack."""
    names = {_POCKET_DRAFT: "draft", **pocket.HEAD_NAMES}
    return [
        ({"method": infer_method(name), "model": name}, pocket.path(folder))
        for name, folder in names.items()
    ]


def from_text() -> list[dict[str, Any]]:
    """Methods that draft for any target, and need nothing."""
    return [{"method": method} for method in _FROM_TEXT]


def named(configs: Iterable[Mapping[str, Any]], *, is_asked: bool = False) -> list[Candidate]:
    """Candidates from dictionaries, each named by its method and by what sets it apart from others.

    Raises:
        ValueError: If one is no `speculative_config`, or two are the same.
    """
    given = [(dict(config), str(SpeculativeConfig.from_dict(config).method)) for config in configs]
    found: dict[str, Candidate] = {}
    for config, method in given:
        rivals = [other for other, kind in given if kind == method and other is not config]
        name = " ".join([method, *_differences(config, rivals)])
        if name in found:
            raise ValueError(f"speculator {name!r} is given twice; leave one out")
        found[name] = Candidate(name, config, is_asked)
    return list(found.values())


def _differences(config: dict[str, Any], rivals: Sequence[dict[str, Any]]) -> list[str]:
    """What tells a dictionary from others of its method, key by key."""
    keys = dict.fromkeys(key for one in (config, *rivals) for key in one if key != "method")
    said = []
    for key in keys:
        if key in config and any(other.get(key) != config[key] for other in rivals):
            value = config[key]
            short = {"model": _short(value), "num_speculative_tokens": f"K={value}"}
            said.append(short.get(key, f"{key}={value}"))
    return said


def made_at_most(config: Mapping[str, Any], make: Callable[[int], T], most: int) -> tuple[int, T]:
    """K and what `make` returns for it: the K of a dictionary or its tree, or as `most_drafts`.

    Raises:
        ValueError: As `make`, of a K that was named, or as `most_drafts`.
    """
    asked = config.get("num_speculative_tokens")
    if asked is None and config.get("speculative_token_tree") is not None:
        asked = SpeculativeConfig.from_dict(config).num_speculative_tokens
    return most_drafts(make, most) if asked is None else (asked, make(asked))


def most_drafts(make: Callable[[int], T], most: int) -> tuple[int, T]:
    """What `make` returns for the largest K that it takes, and that K.

    A head of n modules drafts at most n tokens, and says so by refusing more.

    Args:
        make: Called with a few K, of which it takes those up to one of them; raises ValueError
            for the others.
        most: The largest K to try, at least 1.

    Raises:
        ValueError: What it said of `most`, if it takes no K at all.
    """
    try:
        return most, make(most)
    except ValueError as error:
        first = error
    found, low, high = None, 0, most
    while high - low > 1 or (found is None and high > 1):
        middle = max((low + high) // 2, 1)
        try:
            found, low = make(middle), middle
        except ValueError:
            high = middle
    if found is None:
        raise first
    return low, found


def _short(model: Any) -> str:
    if isinstance(model, str | Path):
        return Path(model).name
    return str(getattr(model, "name", getattr(model, "__name__", type(model).__name__)))
