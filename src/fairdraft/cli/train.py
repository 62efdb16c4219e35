"""`fairdraft train`: trains a head for a target that stays as it is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairdraft.cli import options
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

Data = Annotated[
    list[str],
    typer.Option(
        help="Text: .txt, .jsonl with a 'text' a line, a saved corpus, or 'self': the target "
        "writes it. Repeat for more.",
        metavar="FILE",
        rich_help_panel=options.INPUT,
    ),
]
Output = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        help="Folder of the head, its curves and its checkpoint.",
        metavar="DIR",
        rich_help_panel=options.INPUT,
    ),
]


def _number(help_text: str, panel: str, name: str | None = None) -> Any:
    names = [] if name is None else [name]
    return typer.Option(*names, help=help_text, rich_help_panel=panel)


SelfTokens = Annotated[int, _number("Ids that 'self' samples.", options.INPUT)]
Resume = Annotated[bool, _number("Go on from the checkpoint in the folder.", TRAINING, "--resume")]
Steps = Annotated[int, _number("Optimizer steps.", TRAINING)]
Minutes = Annotated[float | None, _number("A limit by the clock.", TRAINING)]
Batch = Annotated[int, _number("Windows a step.", TRAINING)]
Length = Annotated[int, _number("Ids of a window.", TRAINING)]
LearningRate = Annotated[float, _number("At the plateau.", TRAINING)]
NumSpeculativeTokens = Annotated[
    int, _number("Drafts a round to train for.", TRAINING, "--num-speculative-tokens")
]
TvWeight = Annotated[
    float, _number("Weight of the total variation on top of the paper's cross-entropy.", TRAINING)
]
Seed = Annotated[int, _number("Of weights and windows.", TRAINING)]
Compiled = Annotated[bool, _number("Compile the loss.", TRAINING, "--compile")]
FeatureLayers = Annotated[str | None, _number("States that are read, e.g. 2,16,29.", SHAPE)]
Modules = Annotated[
    int,
    _number("1: a single module, applied again to its own output; or one a draft.", SHAPE),
]
Layers = Annotated[int, _number("Decoder layers.", SHAPE)]
MemoryLayers = Annotated[
    str | None,
    _number("Layers of the target, from 0, that are attended to, e.g. 3 or 2,3.", SHAPE),
]
SelectorRank = Annotated[int | None, _number("Rank of the candidates' scores.", SHAPE)]
Candidates = Annotated[int | None, _number("Candidates a draft.", SHAPE)]
MarkovRank = Annotated[int, _number("Rank of the bias by the token before.", SHAPE)]
DraftVocabSize = Annotated[
    int | None, _number("Ids that are drafted: the most frequent ones.", SHAPE)
]
NumKeyValueHeads = Annotated[int | None, _number("Key/value heads.", SHAPE)]
IntermediateSize = Annotated[int | None, _number("Width of the MLP.", SHAPE)]


@guarded
def eagle3(
    data: Data,
    output: Output,
    model: options.Model = POCKET,
    self_tokens: SelfTokens = 500_000,
    resume: Resume = False,
    steps: Steps = 2000,
    minutes: Minutes = None,
    batch: Batch = 16,
    length: Length = 256,
    learning_rate: LearningRate = 1e-3,
    num_speculative_tokens: NumSpeculativeTokens = 5,
    tv_weight: TvWeight = 0.0,
    seed: Seed = 0,
    compiled: Compiled = False,
    feature_layers: FeatureLayers = None,
    draft_vocab_size: DraftVocabSize = None,
    num_key_value_heads: NumKeyValueHeads = None,
    intermediate_size: IntermediateSize = None,
    tokenizer: options.Tokenizer = None,
    device: options.Device = "cpu",
    threads: options.Threads = None,
) -> int:
    """Train an EAGLE-3 head: one layer that drafts from the target's hidden states.

    Progress goes to stderr. A run that was stopped goes on with --resume.
    """
    return _train("eagle3", locals())


@guarded
def mtp(
    data: Data,
    output: Output,
    model: options.Model = POCKET,
    self_tokens: SelfTokens = 500_000,
    resume: Resume = False,
    steps: Steps = 2000,
    minutes: Minutes = None,
    batch: Batch = 16,
    length: Length = 256,
    learning_rate: LearningRate = 1e-3,
    num_speculative_tokens: NumSpeculativeTokens = 5,
    tv_weight: TvWeight = 0.0,
    seed: Seed = 0,
    compiled: Compiled = False,
    modules: Modules = 1,
    draft_vocab_size: DraftVocabSize = None,
    num_key_value_heads: NumKeyValueHeads = None,
    intermediate_size: IntermediateSize = None,
    tokenizer: options.Tokenizer = None,
    device: options.Device = "cpu",
    threads: options.Threads = None,
) -> int:
    """Train modules for multi-token prediction: layers that draft from the target's last state.

    Progress goes to stderr. A run that was stopped goes on with --resume.
    """
    return _train("mtp", locals())


@guarded
def shared_kv_mtp(
    data: Data,
    output: Output,
    model: options.Model = POCKET,
    self_tokens: SelfTokens = 500_000,
    resume: Resume = False,
    steps: Steps = 2000,
    minutes: Minutes = None,
    batch: Batch = 16,
    length: Length = 256,
    learning_rate: LearningRate = 1e-3,
    num_speculative_tokens: NumSpeculativeTokens = 5,
    tv_weight: TvWeight = 0.0,
    seed: Seed = 0,
    compiled: Compiled = False,
    memory_layers: MemoryLayers = None,
    draft_vocab_size: DraftVocabSize = None,
    intermediate_size: IntermediateSize = None,
    tokenizer: options.Tokenizer = None,
    device: options.Device = "cpu",
    threads: options.Threads = None,
) -> int:
    """Train a head without keys of its own, which attends to its target's.

    Progress goes to stderr. A run that was stopped goes on with --resume.
    """
    return _train("shared_kv_mtp", locals())


@guarded
def dflash(
    data: Data,
    output: Output,
    model: options.Model = POCKET,
    self_tokens: SelfTokens = 500_000,
    resume: Resume = False,
    steps: Steps = 2000,
    minutes: Minutes = None,
    batch: Batch = 16,
    length: Length = 256,
    learning_rate: LearningRate = 1e-3,
    num_speculative_tokens: NumSpeculativeTokens = 5,
    tv_weight: TvWeight = 0.0,
    seed: Seed = 0,
    compiled: Compiled = False,
    feature_layers: FeatureLayers = None,
    layers: Layers = 1,
    draft_vocab_size: DraftVocabSize = None,
    num_key_value_heads: NumKeyValueHeads = None,
    intermediate_size: IntermediateSize = None,
    tokenizer: options.Tokenizer = None,
    device: options.Device = "cpu",
    threads: options.Threads = None,
) -> int:
    """Train a DFlash head: layers that draft a block of masks in one pass.

    Progress goes to stderr. A run that was stopped goes on with --resume.
    """
    return _train("dflash", locals())


@guarded
def dflash2(
    data: Data,
    output: Output,
    model: options.Model = POCKET,
    self_tokens: SelfTokens = 500_000,
    resume: Resume = False,
    steps: Steps = 2000,
    minutes: Minutes = None,
    batch: Batch = 16,
    length: Length = 256,
    learning_rate: LearningRate = 1e-3,
    num_speculative_tokens: NumSpeculativeTokens = 5,
    tv_weight: TvWeight = 0.0,
    seed: Seed = 0,
    compiled: Compiled = False,
    feature_layers: FeatureLayers = None,
    layers: Layers = 1,
    selector_rank: SelectorRank = None,
    candidates: Candidates = None,
    draft_vocab_size: DraftVocabSize = None,
    num_key_value_heads: NumKeyValueHeads = None,
    intermediate_size: IntermediateSize = None,
    tokenizer: options.Tokenizer = None,
    device: options.Device = "cpu",
    threads: options.Threads = None,
) -> int:
    """Train a DFlash2 head: a DFlash head that chooses between a few candidates a draft.

    Progress goes to stderr. A run that was stopped goes on with --resume.
    """
    return _train("dflash2", locals())


@guarded
def dspark(
    data: Data,
    output: Output,
    model: options.Model = POCKET,
    self_tokens: SelfTokens = 500_000,
    resume: Resume = False,
    steps: Steps = 2000,
    minutes: Minutes = None,
    batch: Batch = 16,
    length: Length = 256,
    learning_rate: LearningRate = 1e-3,
    num_speculative_tokens: NumSpeculativeTokens = 5,
    tv_weight: TvWeight = 0.0,
    seed: Seed = 0,
    compiled: Compiled = False,
    feature_layers: FeatureLayers = None,
    layers: Layers = 1,
    markov_rank: MarkovRank = 256,
    draft_vocab_size: DraftVocabSize = None,
    num_key_value_heads: NumKeyValueHeads = None,
    intermediate_size: IntermediateSize = None,
    tokenizer: options.Tokenizer = None,
    device: options.Device = "cpu",
    threads: options.Threads = None,
) -> int:
    """Train a DSpark head: a DFlash head whose drafts also read the token before.

    Progress goes to stderr. A run that was stopped goes on with --resume.
    """
    return _train("dspark", locals())


def _train(kind: str, given: dict[str, Any]) -> int:
    """Trains a head from what a command was given, by the names of its parameters."""
    feature_layers = _layers("feature", given.get("feature_layers"))
    memory_layers = _layers("memory", given.get("memory_layers"))
    import torch

    from fairdraft import training
    from fairdraft.models import load_model
    from fairdraft.training.picture import check_plot_library

    check_plot_library()
    if given["threads"] is not None:
        torch.set_num_threads(given["threads"])
    same = ("steps", "batch", "length", "learning_rate", "tv_weight", "seed")
    minutes = given["minutes"]
    settings = training.Settings(
        **{name: given[name] for name in same},
        seconds=None if minutes is None else 60 * minutes,
        num_drafts=given["num_speculative_tokens"],
    )
    same = ("draft_vocab_size", "num_key_value_heads", "intermediate_size")
    shape = training.HeadShape(
        **{name: given.get(name) for name in same},
        feature_layers=feature_layers,
        memory_layers=memory_layers,
        num_modules=given.get("modules"),
        num_layers=given.get("layers"),
        markov_rank=given.get("markov_rank"),
        selector_rank=given.get("selector_rank"),
        selector_top_k=given.get("candidates"),
    )
    convert_weights(given["model"])
    target = load_model(given["model"], given["tokenizer"], device=given["device"])
    output, seed = given["output"], given["seed"]
    corpus = _corpus(given["data"], target, output, given["self_tokens"], seed)
    say(f"{corpus.num_documents:,} texts, {len(corpus.ids):,} ids")
    training.train_head(
        kind,
        target,
        corpus,
        output,
        settings,
        shape,
        resume=given["resume"],
        compiled=given["compiled"],
        say=say,
    )
    say(f"wrote {output}; generate with --draft {output}")
    return 0


def _corpus(data: list[str], target: CausalLM, output: Path, self_tokens: int, seed: int) -> Corpus:
    """Reads the files, or lets the target write and keeps what it wrote for the next head."""
    from fairdraft.training import read_corpus, sample_corpus

    if SELF not in data:
        return read_corpus(data, target.tokenizer, target.vocab_size)
    if len(data) > 1:
        raise UsageFault("--data self stands alone: the target writes the whole corpus")
    # a text of another target, length or seed is another file
    name = re.sub(r"[^\w.-]+", "_", target.name)
    path = output / f"corpus-{name}-{self_tokens}-{seed}.safetensors"
    if path.is_file():
        say(f"using {path}, written by an earlier run")
        return read_corpus([path], target.tokenizer, target.vocab_size)
    corpus = sample_corpus(target, self_tokens, seed=seed, say=say)
    output.mkdir(parents=True, exist_ok=True)
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
    train.command(name="eagle3")(eagle3)
    train.command(name="mtp")(mtp)
    train.command(name="dflash")(dflash)
    train.command(name="dflash2")(dflash2)
    train.command(name="dspark")(dspark)
    train.command(name="shared_kv_mtp")(shared_kv_mtp)
    app.add_typer(train)
