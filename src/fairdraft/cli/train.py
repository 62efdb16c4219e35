"""`fairdraft train`: trains a head for a target that stays as it is."""

from __future__ import annotations

import re
from collections.abc import Callable
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairdraft.cli import options
from fairdraft.cli.compiling import compiling_is_said
from fairdraft.cli.failure import UsageFault, guarded, say
from fairdraft.cli.loading import convert_weights
from fairdraft.cli.speculation import POCKET

if TYPE_CHECKING:
    from fairdraft.models import CausalLM
    from fairdraft.training import Corpus

TRAINING = "Training"
SHAPE = "Head"
#: in place of a file: the target writes the corpus
SELF = "self"


#: name to type and default
Parameters = dict[str, tuple[Any, Any]]
REQUIRED = Parameter.empty


def _option(
    kind: Any, default: Any, help_text: str, panel: str, *names: str, metavar: str | None = None
) -> tuple[Any, Any]:
    option = typer.Option(*names, help=help_text, rich_help_panel=panel, metavar=metavar)
    return Annotated[kind, option], default


RUN: Parameters = {
    "data": _option(
        list[str],
        REQUIRED,
        "Text: .txt, .jsonl with a 'text' a line, or with 'messages', of which the last answer is "
        "learned; a saved corpus, or 'self': the target writes it. Repeat for more.",
        options.INPUT,
        metavar="FILE",
    ),
    "output": _option(
        Path,
        REQUIRED,
        "Folder of the head, its curves and its checkpoint.",
        options.INPUT,
        "--output",
        "-o",
        metavar="DIR",
    ),
    "model": (options.Model, POCKET),
    "self_tokens": _option(int, 500_000, "Ids that 'self' samples.", options.INPUT),
    "resume": _option(
        bool, False, "Go on from the checkpoint in the folder.", TRAINING, "--resume"
    ),
    "begin_with": _option(
        Path | None,
        None,
        "A head to train further, in its own shape; a third of the usual learning rate suits it.",
        TRAINING,
        "--from",
        metavar="DIR",
    ),
    "steps": _option(
        int | None, None, "Optimizer steps: 2000, or with --minutes as many as fit.", TRAINING
    ),
    "minutes": _option(
        float | None, None, "A limit by the clock, where the learning rate ends.", TRAINING
    ),
    "batch": _option(int, 16, "Windows a step.", TRAINING),
    "length": _option(int, 256, "Ids of a window.", TRAINING),
    "learning_rate": _option(float, 1e-3, "At the plateau.", TRAINING),
    "num_speculative_tokens": _option(int, 5, "Drafts a round to train for.", TRAINING),
    "tv_weight": _option(
        float,
        0.0,
        "Weight of the total variation on top of the paper's cross-entropy.",
        TRAINING,
    ),
    "seed": _option(int, 0, "Of weights and windows.", TRAINING),
    "compiled": _option(bool, False, "Compile the loss.", TRAINING, "--compile"),
}
#: what a head is made of; each kind takes some of it
SHAPES: Parameters = {
    "feature_layers": _option(str | None, None, "States that are read, e.g. 2,16,29.", SHAPE),
    "modules": _option(
        int, 1, "1: a single module, applied again to its own output; or one a draft.", SHAPE
    ),
    "layers": _option(int, 1, "Decoder layers.", SHAPE),
    "memory_layers": _option(
        str | None,
        None,
        "Layers of the target, from 0, that are attended to, e.g. 3 or 2,3.",
        SHAPE,
    ),
    "selector_rank": _option(int | None, None, "Rank of the candidates' scores.", SHAPE),
    "candidates": _option(int | None, None, "Candidates a draft.", SHAPE),
    "markov_rank": _option(int, 256, "Rank of the bias by the token before.", SHAPE),
    "draft_vocab_size": _option(
        int | None, None, "Ids that are drafted: the most frequent ones.", SHAPE
    ),
    "num_key_value_heads": _option(int | None, None, "Key/value heads.", SHAPE),
    "intermediate_size": _option(int | None, None, "Width of the MLP.", SHAPE),
}
MACHINE: Parameters = {
    "tokenizer": (options.Tokenizer, None),
    "device": (options.Device, "cpu"),
    "threads": (options.Threads, None),
}
_SIZES = ("draft_vocab_size", "num_key_value_heads", "intermediate_size")
#: kind to what is trained, and which of the shapes it has
COMMANDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "eagle3": (
        "an EAGLE-3 head: one layer that drafts from the target's hidden states",
        ("feature_layers", *_SIZES),
    ),
    "mtp": (
        "modules for multi-token prediction: layers that draft from the target's last state",
        ("modules", *_SIZES),
    ),
    "dflash": (
        "a DFlash head: layers that draft a block of masks in one pass",
        ("feature_layers", "layers", *_SIZES),
    ),
    "dflash2": (
        "a DFlash2 head: a DFlash head that chooses between a few candidates a draft",
        ("feature_layers", "layers", "selector_rank", "candidates", *_SIZES),
    ),
    "dspark": (
        "a DSpark head: a DFlash head whose drafts also read the token before",
        ("feature_layers", "layers", "markov_rank", *_SIZES),
    ),
    "shared_kv_mtp": (
        "a head without keys of its own, which attends to its target's",
        ("memory_layers", "draft_vocab_size", "intermediate_size"),
    ),
}


def new_command(kind: str) -> Callable[..., None]:
    """The command that trains one kind of head, with the parameters that it has."""
    what, shapes = COMMANDS[kind]

    def train(**given: Any) -> int:
        return _train(kind, given)

    train.__name__ = kind
    train.__doc__ = f"""Train {what}.

    Progress goes to stderr. A run that was stopped goes on with --resume.
    """
    parameters = RUN | {name: SHAPES[name] for name in shapes} | MACHINE
    signature = Signature(
        [
            Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
            for name, (annotation, default) in parameters.items()
        ]
    )
    # what typer makes options of
    train.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
    return guarded(train)


def _train(kind: str, given: dict[str, Any]) -> int:
    """Trains a head from what a command was given, by the names of its parameters."""
    shape = _shape(kind, given)
    _check_files(given["data"], given["output"])
    say(f"loading {given['model']} on {given['device']}")
    import torch
    import transformers

    from fairdraft import training
    from fairdraft.models import load_model
    from fairdraft.training.picture import check_plot_library

    # a text may be longer than the context: windows are cut out of it
    transformers.logging.set_verbosity_error()
    check_plot_library()
    if given["threads"] is not None:
        torch.set_num_threads(given["threads"])
    same = ("batch", "length", "learning_rate", "tv_weight", "seed")
    minutes, steps = given["minutes"], given["steps"]
    settings = training.Settings(
        steps=2000 if steps is None and minutes is None else steps,
        **{name: given[name] for name in same},
        seconds=None if minutes is None else 60 * minutes,
        num_drafts=given["num_speculative_tokens"],
    )
    convert_weights(given["model"])
    target = load_model(given["model"], given["tokenizer"], device=given["device"])
    output, seed = given["output"], given["seed"]
    # the target may write its corpus for minutes before anything goes there
    output.mkdir(parents=True, exist_ok=True)
    corpus = _corpus(given["data"], target, output, given["self_tokens"], seed)
    say(f"{corpus.num_documents:,} texts, {len(corpus.ids):,} ids")
    training.train_head(
        kind,
        target,
        corpus,
        output,
        settings,
        None if shape is None else training.HeadShape(**shape),
        begin_with=given["begin_with"],
        resume=given["resume"],
        compiled=given["compiled"],
        say=say,
    )
    say(f"wrote {output}; generate with --draft {output}")
    return 0


def _shape(kind: str, given: dict[str, Any]) -> dict[str, Any] | None:
    """The arguments of a `HeadShape`; None for a head that has its shape already."""
    feature_layers = _layers("feature", given.get("feature_layers"))
    memory_layers = _layers("memory", given.get("memory_layers"))
    if given["begin_with"] is not None:
        for name in COMMANDS[kind][1]:
            if given[name] != SHAPES[name][1]:
                option = name.replace("_", "-")
                raise UsageFault(f"--{option}: a head that is trained further keeps its own shape")
        return None
    same = ("draft_vocab_size", "num_key_value_heads", "intermediate_size")
    return {name: given.get(name) for name in same} | {
        "feature_layers": feature_layers,
        "memory_layers": memory_layers,
        "num_modules": given.get("modules"),
        "num_layers": given.get("layers"),
        "markov_rank": given.get("markov_rank"),
        "selector_rank": given.get("selector_rank"),
        "selector_top_k": given.get("candidates"),
    }


def _check_files(data: list[str], output: Path) -> None:
    """Refuses what cannot be read or written, before anything is loaded."""
    if output.exists() and not output.is_dir():
        raise UsageFault(f"--output {output} is a file; name a folder")
    if SELF in data and len(data) > 1:
        raise UsageFault("--data self stands alone: the target writes the whole corpus")
    for file in data:
        if file != SELF and not Path(file).is_file():
            is_folder = Path(file).is_dir()
            what = "it is a folder; name its files" if is_folder else "there is no such file"
            raise UsageFault(f"--data {file}: {what}; 'self' lets the target write")


@compiling_is_said()
def _corpus(data: list[str], target: CausalLM, output: Path, self_tokens: int, seed: int) -> Corpus:
    """Reads the files, or lets the target write and keeps what it wrote for the next head."""
    from fairdraft.training import read_corpus, sample_corpus

    if SELF not in data:
        return read_corpus(data, target.tokenizer, target.vocab_size)
    # a text of another target, length or seed is another file
    name = re.sub(r"[^\w.-]+", "_", target.name)
    path = output / f"corpus-{name}-{self_tokens}-{seed}.safetensors"
    if path.is_file():
        say(f"using {path}, written by an earlier run")
        return read_corpus([path], target.tokenizer, target.vocab_size)
    corpus = sample_corpus(target, self_tokens, seed=seed, say=say)
    corpus.save(path)
    return corpus


def _layers(what: str, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageFault(f"--{what}-layers {text!r}: write numbers, e.g. 2,16,29") from None


def register(app: typer.Typer) -> None:
    """Adds `train` and its subcommands to an application."""
    train = typer.Typer(
        name="train",
        help="Train a head that drafts for a target.",
        no_args_is_help=True,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for kind in COMMANDS:
        train.command(name=kind)(new_command(kind))
    app.add_typer(train)
