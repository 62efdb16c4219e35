"""`fairdraft convert`: rewrites a head in another public layout."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairdraft.cli.failure import UsageFault, guarded, say

LAYOUTS = ("speculators", "eagle")


@guarded
def convert(
    head: Annotated[Path, typer.Argument(help="Folder of an EAGLE-3 head, in either layout.")],
    output: Annotated[Path, typer.Argument(help="Folder to write.")],
    layout: Annotated[
        str, typer.Option(help=f"Layout to write: {' or '.join(LAYOUTS)}.", metavar="NAME")
    ] = "speculators",
    target: Annotated[
        str | None,
        typer.Option(help="Name of the target, noted in the result.", metavar="NAME"),
    ] = None,
    target_layers: Annotated[
        int | None,
        typer.Option(help="Layers of the target, for a head that does not say what it reads."),
    ] = None,
) -> int:
    """Rewrite an EAGLE-3 head in another public layout; its numbers stay as they are."""
    if layout not in LAYOUTS:
        raise UsageFault(f"--layout {layout!r}: choose {' or '.join(LAYOUTS)}")
    if output.resolve() == head.resolve():
        raise UsageFault(f"{str(output)!r} is the head itself: choose another folder")
    if not (head / "config.json").is_file():
        raise UsageFault(f"{str(head)!r} is no head: it has no config.json")
    say(f"reading {head}")
    from fairdraft.speculators.heads import convert_head

    config = convert_head(
        head,
        output,
        layout,  # pyright: ignore[reportArgumentType]
        target_layers=target_layers,
        target_name=target,
    )
    states = ", ".join(map(str, config.feature_layers))
    say(f"wrote {output}: layout {layout}, states {states}, {config.draft_vocab_size} draft ids")
    return 0


def register(app: typer.Typer) -> None:
    """Adds the command to an application."""
    app.command(name="convert")(convert)
