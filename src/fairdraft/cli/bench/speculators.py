"""`fairdraft bench speculators`: every speculator of a target on the same prompts."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairdraft.cli import options
from fairdraft.cli.failure import EXIT_FAILED, UsageFault, guarded, say
from fairdraft.cli.json_option import read_object
from fairdraft.cli.prompts import gather_prompts
from fairdraft.cli.speculation import POCKET

if TYPE_CHECKING:
    from fairdraft.engine.measuring import Candidate, Measurement
    from fairdraft.models import CausalLM

SCHEMA = "fairdraft.bench.speculators/1"
TEMPERATURES = (0.0, 0.7, 1.0)
MEASURING = "Measuring"

Speculators = Annotated[
    list[str] | None,
    typer.Option(
        "--speculator",
        "-s",
        help="A method, a draft model, the folder of a head, or vLLM's dictionary as JSON; may be "
        "given again. All that the target has a drafter for unless told otherwise.",
        metavar="NAME",
        rich_help_panel=MEASURING,
    ),
]
Tokens = Annotated[
    int,
    typer.Option(help="New tokens of each request.", min=1, rich_help_panel=MEASURING),
]
NumSpeculativeTokens = Annotated[
    int,
    typer.Option(
        "--num-speculative-tokens",
        "-k",
        help="Drafts a round.",
        metavar="K",
        min=1,
        rich_help_panel=MEASURING,
    ),
]
Temperatures = Annotated[
    list[float] | None,
    typer.Option(
        "--temperature",
        help="0 is greedy; may be given again. 0, 0.7 and 1 unless told otherwise.",
        metavar="T",
        rich_help_panel=MEASURING,
    ),
]
Rounds = Annotated[
    int | None,
    typer.Option(
        help="Requests of each cell, in turns; one a prompt unless told otherwise.",
        min=1,
        rich_help_panel=MEASURING,
    ),
]
Picture = Annotated[
    Path | None,
    typer.Option(
        help="Where a chart goes, .png or .svg; needs matplotlib.",
        metavar="FILE",
        rich_help_panel=options.INPUT,
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print one JSON document, on one line, in place of the table.",
        rich_help_panel=options.INPUT,
    ),
]


@guarded
def speculators(
    model: options.Model = POCKET,
    speculator: Speculators = None,
    num_speculative_tokens: NumSpeculativeTokens = 4,
    temperature: Temperatures = None,
    tokens: Tokens = 128,
    rounds: Rounds = None,
    prompt: options.Prompt = None,
    file: options.PromptFile = None,
    lines: options.Lines = False,
    picture: Picture = None,
    json: Json = False,
    tokenizer: options.Tokenizer = None,
    dtype: options.Dtype = "float32",
    device: options.Device = "cpu",
    threads: options.Threads = None,
    max_model_len: options.MaxModelLen = None,
    impl: options.Impl = "auto",
    enforce_eager: options.EnforceEager = False,
) -> int:
    """Measure acceptance length, speed and the time split of every speculator.

    Cells take turns with plain decoding, one request at a time; the first turn is
    thrown away. Progress goes to stderr. Exit codes: 0 done, 1 a request failed,
    2 unusable input, 70 internal error, 130 interrupted.
    """
    _check_picture(picture)
    is_given = bool(prompt or file)
    prompts = gather_prompts(prompt or [], file or [], lines=lines) if is_given else None
    import torch
    import transformers

    from fairdraft.cli.bench.document import document
    from fairdraft.cli.bench.table import show_table
    from fairdraft.cli.bench.watching import Watcher
    from fairdraft.cli.document import dumps
    from fairdraft.cli.loading import load_llm
    from fairdraft.engine.measuring import PROMPTS, RequestFailed, measure_speculators
    from fairdraft.engine.measuring.conditions import conditions

    # our own messages name the value and the way out
    transformers.logging.set_verbosity_error()
    before = conditions()
    say(f"loading {model} as {dtype} on {device}")
    loading = {"tokenizer": tokenizer, "dtype": dtype, "device": device}
    target = load_llm(model, None, loading, threads).target
    engine: dict[str, Any] = {"dtype": dtype, "max_model_len": max_model_len}
    engine |= {"impl": impl, "enforce_eager": enforce_eager}
    try:
        with Watcher() as watcher:
            found = measure_speculators(
                target,
                _candidates(target, speculator),
                prompts=PROMPTS if prompts is None else prompts,
                num_drafts=num_speculative_tokens,
                num_tokens=tokens,
                temperatures=temperature or TEMPERATURES,
                samples=rounds,
                on_sample=watcher,
                **engine,
            )
    except RequestFailed as error:
        say(f"error: a request failed, so nothing is reported: {error}")
        return EXIT_FAILED
    _warn(found)
    made = document(found, before, torch.get_num_threads(), SCHEMA)
    if picture is not None:
        from fairdraft.cli.bench.picture import draw

        draw(made, picture)
    if json:
        sys.stdout.write(dumps(made, indent=None) + "\n")
    else:
        show_table(made)
    return 0


def register(app: typer.Typer) -> None:
    """Adds the command to an application."""
    app.command(name="speculators")(speculators)


def _check_picture(picture: Path | None) -> None:
    if picture is None:
        return
    if picture.suffix not in (".png", ".svg"):
        raise UsageFault(f"--picture {str(picture)!r}: give a name that ends in .png or .svg")
    if find_spec("matplotlib") is None:
        raise UsageFault(
            "--picture draws with matplotlib, which is not installed: pip install "
            "'fairdraft[train]', or leave it out"
        )


def _candidates(target: CausalLM, given: list[str] | None) -> list[Candidate] | None:
    """What --speculator names; a bare method takes the drafter that the target has for it."""
    from fairdraft.engine.config import METHODS
    from fairdraft.engine.measuring import available, named

    if not given:
        return None
    known = {candidate.name: candidate.config for candidate in available(target)}
    configs = []
    for value in given:
        if value.lstrip().startswith("{"):
            configs.append(read_object("--speculator", value, '{"method": "ngram"}'))
        elif value in known:
            configs.append(known[value])
        else:
            configs.append({"method" if value in METHODS else "model": value})
    return named(configs, is_asked=True)


def _warn(found: Measurement) -> None:
    for name, reason in found.refused.items():
        say(f"not measured: {name}: {reason}")
    for cell in found.cells:
        if cell.same_text is False:
            say(
                f"greedy texts of {cell.speculator} and of plain decoding differ: near ties of "
                "logits, or a fault; fairdraft audit engine --temperature 0 tells them apart"
            )
