"""Trains heads for the embedded target on text that it writes itself.

python -m train.pocket.heads --output out/eagle3
python -m train.pocket.heads --head mtp --corpus out/eagle3/corpus.safetensors \\
    --output out/mtp
cp out/eagle3/config.json out/eagle3/model.safetensors src/fairdraft/pocket/eagle3/
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fairdraft.models import CausalLM, load_model
from fairdraft.training import (
    Corpus,
    HeadShape,
    Settings,
    read_corpus,
    train_eagle3,
    train_mtp,
)
from fairdraft.training.head import measured
from train.pocket.teacher import Decoder, Sampling


@dataclass(frozen=True)
class Recipe:
    """How much text, how long a training, how many prompts to measure on."""

    batch: int
    sample_steps: int
    sample_seconds: float
    settings: Settings
    num_prompts: int


TRAININGS = {"eagle3": train_eagle3, "mtp": train_mtp}
# a step of `wide` reads 7.2 MB of float32 weights on a CPU, one of `light` 6.0, of `single` 6.6 and
# one of the draft model 5.9; all of an EAGLE-3 head's token comes through its values, so one group
# of 64 holds it back
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
}
RECIPES = {
    "toy": Recipe(
        batch=16,
        sample_steps=400,
        sample_seconds=20,
        settings=Settings(steps=20, batch=4, length=64, tv_weight=4.0),
        num_prompts=8,
    ),
    "good": Recipe(
        batch=8192,
        sample_steps=3000,
        sample_seconds=25,
        settings=Settings(
            steps=20_000,
            seconds=210,
            batch=128,
            length=512,
            learning_rate=3e-3,
            tv_weight=4.0,
        ),
        num_prompts=200,
    ),
}


def sample_own_corpus(target: CausalLM, recipe: Recipe, *, length: int = 512) -> Corpus:
    """Samples whole texts at temperature 1 from the end token that stands before every text."""
    [eos] = target.eos_token_ids
    on_gpu = target.device.type == "cuda"
    model = copy.deepcopy(target.model)
    model = model.to(torch.bfloat16) if on_gpu else model
    rows = max(2 * recipe.batch, recipe.batch * recipe.sample_steps // 40)
    torch.manual_seed(3)
    decoder = Decoder(
        model,
        torch.full((rows, 1), eos),
        torch.ones(rows, dtype=torch.int64),
        batch=recipe.batch,
        length=length,
        max_steps=recipe.sample_steps + 8,
        eos=[eos],
        sampling=Sampling(temperature=1.0, min_p=0.0, penalty=1.0),
        compiled=on_gpu,
    )
    decoder.run(recipe.sample_steps, recipe.sample_seconds)
    # texts in the making have no end yet
    unfinished = set(decoder.request.tolist())
    texts = decoder.texts()
    whole = [ids for number, ids in texts.items() if number not in unfinished]
    return Corpus.from_documents(whole, eos)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--recipe", choices=sorted(RECIPES), default="good")
    parser.add_argument("--head", choices=sorted(SHAPES), default="eagle3")
    parser.add_argument("--shape", help="of the head; its first one unless told otherwise")
    parser.add_argument("--corpus", type=Path, help="a corpus saved by an earlier run")
    parser.add_argument("--seconds", type=float, help="of training, in place of the recipe's")
    parser.add_argument("--no-compile", action="store_true", help="run the loss as it is written")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    shapes = SHAPES[args.head]
    if args.shape not in (None, *shapes):
        parser.error(f"--shape {args.shape}: of --head {args.head} choose {', '.join(shapes)}")
    shape = shapes[args.shape or next(iter(shapes))]
    begin, recipe = time.monotonic(), RECIPES[args.recipe]
    settings = recipe.settings
    if args.seconds is not None:
        settings = replace(settings, seconds=args.seconds)
    if shape.num_modules is not None and shape.num_modules > 1:
        settings = replace(settings, num_drafts=shape.num_modules)
    args.output.mkdir(parents=True, exist_ok=True)
    target = load_model("pocket", device=args.device)
    saved = args.corpus or args.output / "corpus.safetensors"
    if not saved.is_file():
        sample_own_corpus(target, recipe).save(saved)
    corpus = read_corpus([saved], target.tokenizer, target.vocab_size)
    print(
        f"{corpus.num_documents:,} texts, {len(corpus.ids):,} ids, "
        f"{time.monotonic() - begin:.0f} s",
        flush=True,
    )
    on_gpu = args.device.startswith("cuda")

    def say(line: str) -> None:
        print(f"{time.monotonic() - begin:5.0f} s  {line}", flush=True)

    report = TRAININGS[args.head](
        target,
        corpus,
        args.output,
        settings,
        shape,
        resume=args.resume,
        num_prompts=recipe.num_prompts,
        compiled=on_gpu and not args.no_compile,
        say=say,
    )
    prompts = corpus.split()[1].prompts(recipe.num_prompts, 16)
    report["acceptance_of_draft_model"] = measured(target, "pocket-draft", prompts, say=say)
    report["machine"] = torch.cuda.get_device_name() if on_gpu else "cpu"
    report["torch"] = torch.__version__
    report["seconds"] = round(time.monotonic() - begin, 1)
    text = json.dumps(report, indent=1, default=list) + "\n"
    (args.output / "training.json").write_text(text, encoding="utf-8")
    size = (args.output / "model.safetensors").stat().st_size
    say(f"{size:,} bytes in {args.output / 'model.safetensors'}")


if __name__ == "__main__":
    main()
