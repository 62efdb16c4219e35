"""`fairdraft bench speculators`: every speculator of a target on the same prompts."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairdraft.cli import options
from fairdraft.cli.compiling import compiling_is_said
from fairdraft.cli.failure import EXIT_FAILED, UsageFault, guarded, say
from fairdraft.cli.json_option import read_object
from fairdraft.cli.prompts import gather_prompts
from fairdraft.cli.speculation import (
    AUTO,
    METHODS,
    NONE,
    POCKET,
    POCKET_DRAFTERS,
    SMOLLM2,
    with_drafter,
)

if TYPE_CHECKING:
    from fairdraft.engine import LLM
    from fairdraft.engine.measuring import Candidate, Measurement
    from fairdraft.engine.prompts import Prompt
    from fairdraft.models import CausalLM

SCHEMA = "fairdraft.bench.speculators/1"
TEMPERATURES = (0.0, 0.7, 1.0)
ENGINE_OPTIONS = ("dtype", "max_model_len", "impl", "enforce_eager")
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
Batch = Annotated[
    int,
    typer.Option(
        help="Requests at a time. Of several, each text is compared with the one made alone.",
        metavar="N",
        min=1,
        rich_help_panel=MEASURING,
    ),
]
Rounds = Annotated[
    int | None,
    typer.Option(
        help="Turns of each cell, a batch each; as few as continue all prompts equally often "
        "unless told otherwise.",
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
    batch: Batch = 1,
    rounds: Rounds = None,
    prompt: options.Prompt = None,
    file: options.PromptFile = None,
    lines: options.Lines = False,
    chat: options.Chat = None,
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

    Cells take turns with plain decoding, a request at a time or a batch; the
    first turn is thrown away. Progress goes to stderr. Exit codes: 0 done, 1 a
    request failed, 2 unusable input, 70 internal error, 130 interrupted.
    """
    given = dict(locals())
    _check_picture(picture)
    _check_speculators(speculator or [])
    is_given = bool(prompt or file)
    prompts = gather_prompts(prompt or [], file or [], lines=lines) if is_given else None
    say(f"loading {model} as {dtype} on {device}")
    return _measure(given, prompts)


@compiling_is_said()
def _measure(given: dict[str, Any], prompts: list[str] | None) -> int:
    import torch
    import transformers

    from fairdraft.cli.bench.document import document
    from fairdraft.cli.bench.table import show_table
    from fairdraft.cli.bench.watching import Watcher
    from fairdraft.cli.document import dumps
    from fairdraft.cli.loading import load_llm
    from fairdraft.engine.measuring import RequestFailed, measure_speculators
    from fairdraft.engine.measuring.conditions import conditions

    # our own messages name the value and the way out
    transformers.logging.set_verbosity_error()
    before = conditions()
    loading = {name: given[name] for name in ("tokenizer", "dtype", "device", "max_model_len")}
    llm = load_llm(given["model"], None, loading, given["threads"])
    is_asked = given["model"] == SMOLLM2 if given["chat"] is None else given["chat"]
    texts = _prompts(llm.target, prompts, given["batch"], is_asked=is_asked)
    _say_what_is_cut(llm, texts, given["tokens"])
    try:
        with Watcher() as watcher:
            found = measure_speculators(
                llm.target,
                _candidates(llm.target, given["speculator"]),
                prompts=texts,
                num_drafts=given["num_speculative_tokens"],
                num_tokens=given["tokens"],
                batch=given["batch"],
                temperatures=given["temperature"] or TEMPERATURES,
                samples=given["rounds"],
                on_sample=watcher,
                **{name: given[name] for name in ENGINE_OPTIONS},
            )
    except RequestFailed as error:
        say(f"error: a request failed, so nothing is reported: {error}")
        return EXIT_FAILED
    _warn(found)
    made = document(found, before, torch.get_num_threads(), SCHEMA) | {"chat": is_asked}
    if given["json"]:
        sys.stdout.write(dumps(made, indent=None) + "\n")
    else:
        show_table(made)
    # last, so that a picture that cannot be written costs no figures
    if given["picture"] is not None:
        from fairdraft.cli.bench.picture import draw

        draw(made, given["picture"])
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


def _check_speculators(given: list[str]) -> None:
    """Refuses names that cannot be meant, before anything is loaded."""
    for value in given:
        if value == NONE:
            raise UsageFault("--speculator none: plain decoding is always measured; leave it out")
        if value == AUTO:
            raise UsageFault(
                "--speculator auto: it chooses among speculators; leave it out, and all that are "
                "at hand are measured"
            )
        if value in (*METHODS, *POCKET_DRAFTERS.values()) or Path(value).expanduser().exists():
            continue
        # a name in the cache of models may be anything, so only near misses of a method are typos
        close = difflib.get_close_matches(value, METHODS, n=1, cutoff=0.75)
        if close and not value.lstrip().startswith("{"):
            raise UsageFault(f"--speculator {value!r}: did you mean {close[0]!r}?")


def _prompts(
    target: CausalLM, given: list[str] | None, batch: int, *, is_asked: bool
) -> Sequence[Prompt]:
    """What is continued: what was given or else what stands in, asked in the target's template."""
    from fairdraft.engine.measuring import QUESTIONS, default_prompts
    from fairdraft.engine.prompts import chat_prompt

    if not is_asked:
        return default_prompts(batch) if given is None else given
    return [chat_prompt(text, target) for text in given or QUESTIONS]


def _say_what_is_cut(llm: LLM, prompts: Sequence[Prompt], tokens: int) -> None:
    """Says how many tokens fit, where the context ends requests before --tokens does."""
    from fairdraft.engine.prompts import read_prompt

    context = llm.max_model_len
    rooms = [
        context - len(read_prompt(prompt, f"prompts[{number}]", llm.target, context)[1])
        for number, prompt in enumerate(prompts)
    ]
    if min(rooms) < tokens:
        say(
            f"--tokens {tokens}: the context of {context} tokens ends requests after "
            f"{min(rooms)}, the longest prompt's; the figures are of what fits"
        )


def _candidates(target: CausalLM, given: list[str] | None) -> list[Candidate] | None:
    """What --speculator names; a bare method takes the drafter that the target has for it."""
    from fairdraft.engine.measuring import available, named

    if not given:
        return None
    known = {candidate.name: candidate.config for candidate in available(target)}
    configs = []
    for value in given:
        if value.lstrip().startswith("{"):
            config = read_object("--speculator", value, '{"method": "ngram"}')
            configs.append(with_drafter(target.name, config))
        elif value in known:
            configs.append(known[value])
        else:
            config = {"method" if value in METHODS else "model": value}
            configs.append(with_drafter(target.name, config))
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
        if cell.num_same_alone not in (None, found.batch):
            say(
                f"{found.batch - cell.num_same_alone} of {found.batch} texts of {cell.speculator} "
                f"at temperature {cell.temperature:g} are others alone: the target's logits depend "
                "on the batch in their last bits, or a fault"
            )
