"""Trains several target shapes for the same number of steps and compares held-out losses.

python -m train.pocket.sweep --corpus corpus.jsonl --output out --steps 600 --shapes h256x8 h320x5
"""

from __future__ import annotations

import argparse
import dataclasses

import torch

from train.pocket import run, shapes
from train.pocket.train import train_target


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    run.add_arguments(parser)
    parser.add_argument("--shapes", nargs="+", default=["h256x8", "h256x6", "h320x5", "h384x4"])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seconds", type=float, default=60.0, help="limit of one shape")
    args = parser.parse_args()
    recipe, compiled = run.RECIPES[args.recipe], "cuda" in args.device
    torch.set_num_threads(args.threads)
    budget = dataclasses.replace(recipe.target_budget, steps=args.steps, seconds=args.seconds)
    tokenizer, tokens, held_out, _ = run.prepare(args.corpus, recipe.vocab_size, args.device)
    args.output.mkdir(parents=True, exist_ok=True)
    records = []
    for name in args.shapes:
        shape = shapes.TARGETS[name]
        model = shapes.build(shape, recipe.vocab_size, tokenizer.eos_token_id).to(args.device)
        curve = train_target(model, tokens, held_out, budget, name=name, compiled=compiled)
        records.append(run.curve_record(curve, budget, shape))
        run.write_json(args.output / "sweep.json", records)


if __name__ == "__main__":
    main()
