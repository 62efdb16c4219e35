"""`fairdraft audit trace`: what another engine recorded, judged by the laws it recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairdraft.cli.audit import run_options
from fairdraft.cli.failure import UsageFault, guarded

__all__ = ["register", "trace"]

File = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="JSON lines, gzipped or not; see docs/trace-format.md."),
]
AllowCut = Annotated[
    bool,
    typer.Option(
        "--allow-cut", help="Judge a recording that broke off within a line, up to that line."
    ),
]


@guarded
def trace(
    file: File,
    allow_cut: AllowCut = False,
    eps: run_options.Eps = 0.01,
    alpha: run_options.Alpha = 1e-3,
    delta: run_options.Delta = 0.01,
    eps0: run_options.Eps0 = None,
    max_tokens: run_options.MaxTokens = 1_000_000,
    max_minutes: run_options.MaxMinutes = None,
    state: run_options.State = None,
    html: run_options.Html = None,
    json: run_options.Json = False,
) -> int:
    """Audit a recording: do its tokens follow the laws that stand beside them?

    Every line is checked before the first token is judged. Exit codes: 0 PASS,
    1 FAIL, 3 INCONCLUSIVE, 4 INVALID (the message names the line), 2 unusable
    input, 70 internal error, 130 interrupted.
    """
    given = dict(locals())
    from fairdraft.audit.subjects.trace import TraceSubject
    from fairdraft.cli.audit.run import Order, check_order, run_subject

    order = Order.of(given)
    check_order(order)
    if file.is_dir():
        raise UsageFault(f"{file} is a folder; name the recording in it")
    return run_subject(TraceSubject(file, allow_cut=allow_cut), order)


def register(app: typer.Typer) -> None:
    """Adds the command to an application."""
    app.command(name="trace")(trace)
