"""From the options of a command to the engine's `speculative_config`."""

from __future__ import annotations

from typing import Any

from fairdraft import pocket
from fairdraft.cli.failure import UsageFault
from fairdraft.cli.json_option import read_object

POCKET = "pocket"
POCKET_DRAFT = "pocket-draft"
#: what drafts for `pocket` by method, if nothing is said
POCKET_DRAFTERS = {"draft_model": POCKET_DRAFT} | {m: f"pocket-{m}" for m in pocket.HEADS}
SMOLLM2 = "smollm2"
NONE = "none"
AUTO = "auto"


def speculative_config(
    model: str,
    *,
    draft: str | None,
    method: str | None,
    config_json: str | None,
    num_speculative_tokens: int | None,
) -> dict[str, Any] | None:
    """Returns vLLM's dictionary, or None for plain decoding.

    Without a word about speculation, `pocket` is drafted for by `pocket-draft`, `smollm2` by
    prompt lookup, and any other target decodes plainly.

    Raises:
        UsageFault: If the JSON is no object, two options disagree, or K has no speculator.
    """
    given = {
        "model": draft,
        "method": method,
        "num_speculative_tokens": num_speculative_tokens,
    }
    given = {key: value for key, value in given.items() if value is not None}
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
    embedded = POCKET_DRAFTERS.get(str(config.get("method", "draft_model")))
    if model == POCKET and "model" not in config and embedded is not None:
        config["model"] = embedded
    if model == SMOLLM2 and "model" not in config:
        config.setdefault("method", "ngram")
    if "model" not in config and "method" not in config:
        if config:
            raise UsageFault(
                f"{', '.join(sorted(config))} given without a speculator: add --draft MODEL or "
                "--method ngram"
            )
        return None
    if "method" not in config:
        from fairdraft.engine.config import infer_method

        config["method"] = infer_method(config["model"])
    return config


def describe(config: dict[str, Any] | None) -> str:
    """Says in a few words which speculator runs."""
    if config is None:
        return "no speculator"
    name = config["method"]
    if name == AUTO:
        return "auto: measured now"
    if config.get("model") is not None and name != "ngram":
        kind = {"draft_model": "draft", "custom": "custom"}.get(name, f"{name} head")
        name = f"{kind} {config['model']}"
    if config.get("speculative_token_tree") is not None:
        return f"{name}, tree {config['speculative_token_tree']}"
    return f"{name}, K = {config.get('num_speculative_tokens', 4)}"


def _option(key: str) -> str:
    return {"model": "--draft", "method": "--method"}.get(key, "--num-speculative-tokens")
