"""Loads an engine for a command, with as many threads as its target calls for."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from fairdraft.cli.failure import say
from fairdraft.cli.speculation import SMOLLM2

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
    convert_weights(model, (speculative_config or {}).get("model"))
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


def convert_weights(*models: Any) -> None:
    """Converts the weights of `smollm2`, if it is among the models and was never converted here.

    A bar with the time left shows on a terminal, a line elsewhere; both on stderr.

    Raises:
        ValueError: If its package is not installed, or the cache cannot be written.
    """
    if SMOLLM2 not in models:
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    from fairdraft.models import smollm2

    console = Console(stderr=True, highlight=False)
    bar = Progress(
        TextColumn("converting"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    tasks: list[TaskID] = []
    with ExitStack() as stack:

        def show(done: int, total: int) -> None:
            if not tasks:
                say(f"converting {SMOLLM2}, once, into {smollm2.cache_folder()}")
                stack.enter_context(bar)
                tasks.append(bar.add_task("convert", total=total))
            bar.update(tasks[0], completed=done)

        smollm2.path(progress=show)
