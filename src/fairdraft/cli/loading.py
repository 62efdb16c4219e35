"""Loads an engine for a command, with as many threads as its target calls for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairdraft.engine import LLM

# below this many parameters a second thread costs more in waiting than it computes
SMALL_MODEL = 20_000_000


def load_llm(
    model: str,
    speculative_config: dict[str, Any] | None,
    engine: dict[str, Any],
    threads: int | None,
) -> LLM:
    """Loads the models and sets torch's threads.

    Args:
        model: The target.
        speculative_config: vLLM's dictionary, or None.
        engine: Further arguments of `LLM`.
        threads: Of torch; None for one if the target is small, and as many as there are if not.

    Raises:
        ValueError: If a model or option cannot be used.
    """
    import torch

    from fairdraft.engine import LLM
    from fairdraft.engine.choice import read_config
    from fairdraft.models import load_model

    # what cannot be used is refused before anything is loaded
    config = read_config(speculative_config)
    many = torch.get_num_threads()
    # the target's size is known only after it was tried
    torch.set_num_threads(threads or 1)
    names = ("tokenizer", "dtype", "device")
    loading = {name: engine[name] for name in names if name in engine}
    target = load_model(model, **loading)
    if threads is None and target.num_parameters >= SMALL_MODEL:
        torch.set_num_threads(many)
    rest = {name: value for name, value in engine.items() if name != "tokenizer"}
    return LLM(target, speculative_config=config, **rest)
