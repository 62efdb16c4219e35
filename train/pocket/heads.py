"""Trains heads for the embedded target on text that it writes itself.

python -m train.pocket.heads --output out/eagle3
python -m train.pocket.heads --head mtp --corpus out/eagle3/corpus.safetensors \\
    --output out/mtp
python -m train.pocket.heads --head dflash --corpus out/eagle3/corpus.safetensors \\
    --output out/dflash
python -m train.pocket.heads --head dspark --corpus out/eagle3/corpus.safetensors \\
    --output out/dspark
python -m train.pocket.heads --head dflash2 --corpus out/eagle3/corpus.safetensors \\
    --output out/dflash2
python -m train.pocket.heads --head shared_kv_mtp --corpus out/eagle3/corpus.safetensors \\
    --output out/shared_kv_mtp
python -m train.pocket.heads --from src/fairdraft/pocket/eagle3 --seconds 600 --output out/further
cp out/eagle3/config.json out/eagle3/model.safetensors src/fairdraft/pocket/eagle3/
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fairdraft.models import CausalLM, load_model
from fairdraft.training import Corpus, HeadShape, Settings, read_corpus, train_head
from fairdraft.training.head import measured
from train.pocket.teacher import Decoder, Sampling


@dataclass(frozen=True)
class Recipe:
    """How much text, how long a training, how many prompts to measure on.

    Attributes:
        batch: Texts that are sampled at the same time.
        length: Ids of the longest text, its prompt included.
        sample_steps: Most decode steps.
        sample_seconds: Most seconds of sampling.
        settings: Of the training.
        num_prompts: On which acceptance is measured.
    """

    batch: int
    length: int
    sample_steps: int
    sample_seconds: float
    settings: Settings
    num_prompts: int


# a step of `wide` reads 7.2 MB of float32 weights on a CPU, one of `light` 6.0, of `single` 6.6 and
# one of the draft model 5.9; all of an EAGLE-3 head's token comes through its values, so one group
# of 64 holds it back. A block is drafted by one
# pass, which reads 7.2 MB with two layers and 5.5 MB with one, and 2 to 2.2 MB for its context;
# each draft of `dspark` reads .5 MB more, one of `dflash2` next to nothing. A step of the heads
# over the target's keys reads 7.0 MB with one layer and 8.9 MB with two
BLOCK: dict[str, Any] = {
    "feature_layers": (1, 2, 4),
    "draft_vocab_size": 2048,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
}
SHAPES = {
    "eagle3": {
        name: HeadShape(
            feature_layers=(1, 2, 4),
            draft_vocab_size=2048,
            num_attention_heads=4,
            num_key_value_heads=num_groups,
            intermediate_size=288,
        )
        for name, num_groups in {"wide": 4, "light": 1}.items()
    },
    "mtp": {
        name: HeadShape(
            draft_vocab_size=2048,
            num_attention_heads=4,
            num_key_value_heads=1,
            intermediate_size=288,
            num_modules=num_modules,
        )
        for name, num_modules in {"single": 1, "modules": 4}.items()
    },
    "dflash": {
        name: HeadShape(**BLOCK, num_layers=num_layers, intermediate_size=width)
        for name, num_layers, width in (("deep", 2, 224), ("light", 1, 288))
    },
    "dflash2": {
        "light": HeadShape(
            **BLOCK, num_layers=1, intermediate_size=288, selector_rank=48, selector_top_k=16
        ),
    },
    "shared_kv_mtp": {
        name: HeadShape(
            draft_vocab_size=2048,
            num_attention_heads=4,
            intermediate_size=width,
            memory_layers=layers,
        )
        for name, width, layers in (("light", 288, (3,)), ("deep", 256, (2, 3)))
    },
    "dspark": {
        name: HeadShape(**BLOCK, num_layers=layers, intermediate_size=width, markov_rank=rank)
        for name, layers, width, rank in (("light", 1, 288, 64), ("deep", 2, 152, 32))
    },
}
RECIPES = {
    "toy": Recipe(
        batch=16,
        length=512,
        sample_steps=400,
        sample_seconds=20,
        settings=Settings(steps=20, batch=4, length=64, tv_weight=4.0),
        num_prompts=8,
    ),
    "good": Recipe(
        batch=8192,
        length=512,
        sample_steps=3000,
        sample_seconds=25,
        settings=Settings(
            steps=20_000,
            seconds=210,
            batch=128,
            length=512,
            learning_rate=3e-3,
            block_every=2,
            tv_weight=4.0,
        ),
        num_prompts=200,
    ),
}


@dataclass(frozen=True)
class Task:
    """What differs between targets.

    Attributes:
        load: Loads the target on a device, from what the command line says.
        shapes: Heads by kind and name; the first of a kind is trained unless told otherwise.
        recipes: By name.
        sample: Has the target write a corpus.
        prompts: So many prompts to measure on, from the target and the corpus.
        baseline: What drafts without a head, for comparison.
    """

    load: Callable[[argparse.Namespace], CausalLM]
    shapes: Mapping[str, Mapping[str, HeadShape]]
    recipes: Mapping[str, Recipe]
    sample: Callable[[CausalLM, Recipe], Corpus]
    prompts: Callable[[CausalLM, Corpus, int], list[list[int]]]
    baseline: str


def sample_texts(
    target: CausalLM, prompts: list[list[int]], recipe: Recipe
) -> list[tuple[list[int], list[int]]]:
    """Continues prompts at temperature 1, in their order, as many as time allows.

    Args:
        target: Who writes.
        prompts: Ids of more prompts than rows of the batch.
        recipe: Rows, length and time.

    Returns:
        Prompts, and their whole texts without the end tokens.
    """
    on_gpu = target.device.type == "cuda"
    model = copy.deepcopy(target.model)
    model = model.to(torch.bfloat16) if on_gpu else model
    width = max(map(len, prompts))
    torch.manual_seed(3)
    decoder = Decoder(
        model,
        torch.tensor([ids + [0] * (width - len(ids)) for ids in prompts]),
        torch.tensor([len(ids) for ids in prompts]),
        batch=recipe.batch,
        length=recipe.length,
        max_steps=recipe.sample_steps + 8,
        eos=sorted(target.eos_token_ids),
        sampling=Sampling(temperature=1.0, min_p=0.0, penalty=1.0),
        compiled=on_gpu,
    )
    decoder.run(recipe.sample_steps, recipe.sample_seconds)
    # texts in the making have no end yet
    unfinished = set(decoder.request.tolist())
    texts = decoder.texts()
    return [(prompts[i], ids) for i, ids in texts.items() if i not in unfinished]


def sample_own_corpus(target: CausalLM, recipe: Recipe) -> Corpus:
    """Whole texts, each from the end token that stands before every text."""
    [eos] = target.eos_token_ids
    rows = max(2 * recipe.batch, recipe.batch * recipe.sample_steps // 40)
    texts = sample_texts(target, [[eos]] * rows, recipe)
    return Corpus.from_documents((ids for _, ids in texts), eos)


def read_arguments(task: Task, parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Adds the options that all targets share, and reads the command line."""
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--recipe", choices=sorted(task.recipes), default="good")
    parser.add_argument("--head", choices=sorted(task.shapes), default="eagle3")
    parser.add_argument("--shape", help="of the head; its first one unless told otherwise")
    parser.add_argument("--corpus", type=Path, help="a corpus saved by an earlier run")
    parser.add_argument(
        "--seconds", type=float, help="of training, in place of the recipe's, however many steps"
    )
    parser.add_argument("--rate", type=float, help="of learning, in place of the recipe's")
    parser.add_argument(
        "--from",
        type=Path,
        dest="begin_with",
        metavar="FOLDER",
        help="a head of this kind to train further, in its shape, at a third of the rate",
    )
    parser.add_argument("--no-compile", action="store_true", help="run the loss as it is written")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    names = task.shapes[args.head]
    if args.shape is not None and args.begin_with is not None:
        parser.error("--shape: a head that is trained further keeps its own; leave it out")
    if args.shape not in (None, *names):
        parser.error(f"--shape {args.shape}: of --head {args.head} choose {', '.join(names)}")
    return args


def chosen_settings(recipe: Recipe, args: argparse.Namespace, modules: int) -> Settings:
    """The recipe's, with what the command line says instead."""
    settings = recipe.settings
    if args.seconds is not None:
        settings = replace(settings, seconds=args.seconds, steps=None)
    if modules > 1:
        settings = replace(settings, num_drafts=modules)
    if args.begin_with is not None:
        # at a new head's rate it would forget first, and its optimizer knows no scales yet
        settings = replace(settings, learning_rate=settings.learning_rate / 3, warmup=0.05)
    if args.rate is not None:
        settings = replace(settings, learning_rate=args.rate)
    return settings


def carry_out(task: Task, args: argparse.Namespace) -> None:
    """Samples, trains, measures, and writes the head, its figures and its corpus."""
    begin = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - begin:5.0f} s  {line}", flush=True)

    recipe, shapes = task.recipes[args.recipe], task.shapes[args.head]
    shape = shapes[args.shape or next(iter(shapes))]
    args.output.mkdir(parents=True, exist_ok=True)
    target = task.load(args)
    saved = args.corpus or args.output / "corpus.safetensors"
    if not saved.is_file():
        task.sample(target, recipe).save(saved)
    corpus = read_corpus([saved], target.tokenizer, target.vocab_size)
    say(f"{corpus.num_documents:,} texts, {len(corpus.ids):,} ids")
    on_gpu = args.device.startswith("cuda")
    modules = shape.num_modules or 1
    report = train_head(
        args.head,
        target,
        corpus,
        args.output,
        chosen_settings(recipe, args, modules),
        shape if args.begin_with is None else None,
        begin_with=args.begin_with,
        resume=args.resume,
        num_prompts=0,
        compiled=on_gpu and not args.no_compile,
        say=say,
    )
    prompts = task.prompts(target, corpus, recipe.num_prompts)
    most = min(4, modules) if modules > 1 else 4
    compared = {"acceptance": args.output, f"acceptance_of_{task.baseline}": task.baseline}
    for name, model in compared.items():
        report[name] = measured(target, model, prompts, num_drafts=most, say=say)
    report["machine"] = torch.cuda.get_device_name() if on_gpu else "cpu"
    report["torch"] = torch.__version__
    report["seconds"] = round(time.monotonic() - begin, 1)
    text = json.dumps(report, indent=1, default=list) + "\n"
    (args.output / "training.json").write_text(text, encoding="utf-8")
    size = (args.output / "model.safetensors").stat().st_size
    say(f"{size:,} bytes in {args.output / 'model.safetensors'}")


TASK = Task(
    load=lambda args: load_model("pocket", device=args.device),
    shapes=SHAPES,
    recipes=RECIPES,
    sample=sample_own_corpus,
    prompts=lambda target, corpus, count: corpus.split()[1].prompts(count, 16),
    baseline="pocket-draft",
)


if __name__ == "__main__":
    carry_out(TASK, read_arguments(TASK, argparse.ArgumentParser(description=__doc__)))
