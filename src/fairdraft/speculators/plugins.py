"""Finds a custom speculator: an object, "module:attribute", or the name of an entry point."""

from __future__ import annotations

import difflib
import importlib
from importlib.metadata import entry_points
from typing import Any

from fairdraft.speculators.custom import DraftLogits, LogitsSpeculator, PointSpeculator
from fairdraft.speculators.proposal import Speculator

#: entry points of installed packages; their names are what 'model' may say
GROUP = "fairdraft.speculators"

_METHODS = ("propose", "commit", "admit_row", "move_row", "drop_row")


def load_plugin(model: Any) -> tuple[Any, str]:
    """The object that `model` stands for, and what messages call it.

    Args:
        model: An object, which is taken as it is, "module:attribute" (dots in the attribute are
            followed), or the name of an entry point of the group `fairdraft.speculators`.

    Raises:
        ValueError: If there is no such module, attribute or entry point.
    """
    if not isinstance(model, str):
        return model, getattr(model, "__name__", type(model).__name__)
    if ":" not in model:
        known = {point.name: point for point in entry_points(group=GROUP)}
        if model not in known:
            close = difflib.get_close_matches(model, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else "pass 'module:attribute'"
            raise ValueError(
                f"custom speculator {model!r}: no installed package has an entry point of that "
                f"name in the group {GROUP!r}; {hint}"
            )
        return known[model].load(), model
    module, _, path = model.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"custom speculator {model!r} cannot be loaded: {error}") from error
    return found, model


def new_custom(
    model: Any,
    num_speculative_tokens: int,
    target: Any,
    *,
    greedy: bool = False,
    confidence_threshold: float = 0.0,
) -> Speculator:
    """Makes a speculator of what a caller brought.

    Args:
        model: See `load_plugin`. A class is called with the target (its `vocab_size`, `tokenizer`
            ..) and K, and the result taken: an object with `logits(token_ids)`, a whole
            `Speculator`, or a function of decided tokens and the most drafts.
        num_speculative_tokens: K.
        target: The loaded target.
        greedy, confidence_threshold: See `DraftChain`; for an object with `logits` only.

    Raises:
        ValueError: If it is none of these, or an option does not belong to it.
    """
    found, what = load_plugin(model)
    if isinstance(found, type):
        made: Any = found
        found = made(target, num_speculative_tokens)
    vocab_size = target.vocab_size
    if isinstance(found, DraftLogits) and not hasattr(found, "propose"):
        return LogitsSpeculator(
            found,
            num_speculative_tokens,
            vocab_size,
            what,
            greedy=greedy,
            confidence_threshold=confidence_threshold,
        )
    if greedy or confidence_threshold:
        raise ValueError(
            f"custom speculator {what}: draft_sample_method and confidence_threshold belong to one "
            "that has logits(token_ids); it has none"
        )
    if hasattr(found, "propose"):
        return _checked(found, num_speculative_tokens, what)
    if not callable(found):
        raise ValueError(
            f"custom speculator {what} is a {type(found).__name__}: pass a function of "
            "(token_ids, max_tokens), an object with logits(token_ids), or a Speculator"
        )
    function: Any = found
    return PointSpeculator(function, num_speculative_tokens, vocab_size, what)


def _checked(found: Any, num_speculative_tokens: int, what: str) -> Speculator:
    missing = [name for name in (*_METHODS, "name") if not hasattr(found, name)]
    if missing:
        raise ValueError(
            f"custom speculator {what} has propose() and lacks {', '.join(missing)}; see Speculator"
        )
    own = getattr(found, "num_speculative_tokens", None)
    if own != num_speculative_tokens:
        raise ValueError(
            f"custom speculator {what} has num_speculative_tokens={own!r} and the configuration "
            f"{num_speculative_tokens}; give both the same"
        )
    return found
