"""From the options of a command to the engine's `speculative_config`."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from fairdraft import pocket
from fairdraft.cli.failure import UsageFault
from fairdraft.cli.json_option import read_object

POCKET = "pocket"
POCKET_DRAFT = "pocket-draft"
#: what drafts for `pocket` by method, if nothing is said
POCKET_DRAFTERS = {
    "draft_model": POCKET_DRAFT,
    **{method: name for name, method in pocket.HEAD_NAMES.items()},
}
SMOLLM2 = "smollm2"
NONE = "none"
AUTO = "auto"
#: K of `engine.config`, which loads torch
NUM_DRAFTS = 4
#: what --method takes: the methods of `engine.config`, which loads torch, and two words more
METHODS = (
    *("draft_model", "ngram", "suffix", "prediction", *pocket.HEADS, "custom"),
    *(NONE, AUTO),
)


def speculative_config(
    model: str,
    *,
    draft: str | None,
    method: str | None,
    config_json: str | None,
    num_speculative_tokens: int | None,
) -> dict[str, Any] | None:
    """Returns vLLM's dictionary, or None for plain decoding; loads nothing.

    Without a word about speculation, `pocket` is drafted for by `pocket-draft`, `smollm2` by
    prompt lookup, and any other target decodes plainly. "method" may stay open where the drafter
    alone says it, see `with_method`.

    Raises:
        UsageFault: If the method is unknown, the JSON is no object, two options disagree, or K has
            no speculator or is below 1.
    """
    given = {
        "model": draft,
        "method": method,
        "num_speculative_tokens": num_speculative_tokens,
    }
    given = {key: value for key, value in given.items() if value is not None}
    if method is not None and method not in METHODS:
        raise UsageFault(f"--method {method!r} is not known; {hint(method, METHODS)}")
    if method == NONE:
        others = [_option(key) for key in given if key != "method"]
        others += ["--speculative-config"] if config_json is not None else []
        if others:
            raise UsageFault(f"--method none turns speculation off; leave out {', '.join(others)}")
        return None
    config = {}
    if config_json is not None:
        config = read_object("--speculative-config", config_json, '{"method": "ngram"}')
    for key, value in given.items():
        if key in config and config[key] != value:
            raise UsageFault(
                f"{_option(key)} {value} and {key!r} in --speculative-config disagree: leave one "
                "out"
            )
    config.update(given)
    _refuse_no_drafts(config)
    config = with_drafter(model, config)
    if model == SMOLLM2 and "model" not in config:
        config.setdefault("method", "ngram")
    if "model" not in config and "method" not in config:
        if config:
            raise UsageFault(
                f"{', '.join(sorted(config))} given without a speculator: add --draft MODEL or "
                "--method ngram"
            )
        return None
    return config


def with_drafter(model: str, config: dict[str, Any]) -> dict[str, Any]:
    """The dictionary with the drafter that `pocket` has for its method, where it names none.

    Args:
        model: The target.
        config: vLLM's dictionary; for method "auto" its candidates are completed.
    """
    if model != POCKET:
        return config
    method = str(config.get("method", "draft_model"))
    candidates = config.get("candidates")
    if method == AUTO and isinstance(candidates, list):
        filled = [with_drafter(model, one) if isinstance(one, dict) else one for one in candidates]
        return {**config, "candidates": filled}
    if "model" not in config and method in POCKET_DRAFTERS:
        return {"method": method, **config, "model": POCKET_DRAFTERS[method]}
    methods = {drafter: method for method, drafter in POCKET_DRAFTERS.items()}
    found = methods.get(str(config.get("model")))
    if "method" not in config and found is not None:
        return {"method": found, **config}
    return config


def with_method(config: dict[str, Any] | None) -> dict[str, Any] | None:
    """The dictionary with the method that its drafter stands for; loads the engine to find out."""
    if config is None or "method" in config:
        return config
    from fairdraft.engine.config import infer_method

    return {"method": infer_method(config["model"]), **config}


def hint(given: str, known: Sequence[str]) -> str:
    """What to write in place of a name that is not known: the closest one, or any of them."""
    close = difflib.get_close_matches(given, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(known)}"


def describe(config: dict[str, Any] | None) -> str:
    """Says in a few words which speculator runs."""
    if config is None:
        return "no speculator"
    name = config.get("method", "draft_model")
    if name == AUTO:
        return "auto: measured now"
    if config.get("model") is not None and name != "ngram":
        kind = {"draft_model": "draft", "custom": "custom"}.get(name, f"{name} head")
        name = f"{kind} {config['model']}"
    if config.get("speculative_token_tree") is not None:
        return f"{name}, tree {config['speculative_token_tree']}"
    asked = config.get("num_speculative_tokens")
    return f"{name}, K = {NUM_DRAFTS if asked is None else asked}"


def _refuse_no_drafts(config: dict[str, Any]) -> None:
    count = config.get("num_speculative_tokens")
    if isinstance(count, int) and count < 1:
        raise UsageFault(
            f"--num-speculative-tokens {count}: must be at least 1; for no speculation use "
            "--method none"
        )


def _option(key: str) -> str:
    return {"model": "--draft", "method": "--method"}.get(key, "--num-speculative-tokens")
