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

    many = torch.get_num_threads()
    # the target's size is known only after it was tried
    torch.set_num_threads(threads or 1)
    llm = LLM(model, speculative_config=speculative_config, **engine)
    if threads is None and llm.target.num_parameters >= SMALL_MODEL:
        torch.set_num_threads(many)
    return llm
