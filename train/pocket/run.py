"""The whole recipe: tokenizer, target, draft, evaluation, files.

python -m train.pocket.run --corpus corpus.jsonl --output out --recipe good --device cuda
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, LlamaForCausalLM, PreTrainedTokenizerFast

from train.pocket import distill, evaluate, shapes
from train.pocket.data import Tokens, encode, is_held_out, read_documents
from train.pocket.selftext import sample_own_texts
from train.pocket.tokenizer import save_tokenizer, train_tokenizer
from train.pocket.train import Budget, Curve, train_target


@dataclass(frozen=True)
class Recipe:
    """Everything that sets the result apart from the corpus."""

    target: str
    draft: str
    vocab_size: int
    target_budget: Budget
    draft_budget: Budget
    own_text_seconds: float
    own_text_batch: int


RECIPES = {
    "toy": Recipe(
        "toy", "toy", 512, Budget(20, 60, 8, 128, 3e-3), Budget(20, 60, 8, 128, 3e-3), 2, 4
    ),
    "first": Recipe(
        "first",
        "first",
        1024,
        Budget(190, 4000, 16, 256, 3e-3),
        Budget(75, 4000, 16, 128, 4e-3),
        0,
        4,
    ),
    "good": Recipe(
        "h384x4",
        "h208x1",
        4096,
        Budget(120, 20_000, 128, 1024, 3e-3),
        Budget(260, 20_000, 128, 1024, 4e-3),
        15,
        8192,
    ),
}


def load_texts(paths: list[Path]) -> tuple[list[str], list[str]]:
    """Training and held-out texts of the corpus files."""
    train, held_out = [], []
    for path in paths:
        for document in read_documents(path):
            (held_out if is_held_out(document) else train).append(document["text"])
    return train, held_out


def save_model(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Writes a bf16 checkpoint with its tokenizer in Hugging Face format."""
    folder.mkdir(parents=True, exist_ok=True)
    model = model.to("cpu", torch.bfloat16)
    model.generation_config.do_sample = True
    model.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    save_tokenizer(tokenizer, folder)


def load_model(folder: Path, device: str) -> LlamaForCausalLM:
    """Loads a checkpoint, bf16 weights computed in fp32."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()


def evaluate_pair(
    folder: Path,
    tokenizer: PreTrainedTokenizerFast,
    held_out: Tokens,
    num_bytes: int,
    device: str,
    *,
    num_prompts: int = 200,
    max_tokens: int = 400_000,
) -> dict[str, object]:
    """Evaluates the saved files; returns figures and sample texts."""
    target, draft = (load_model(folder / name, device) for name in ("target", "draft"))
    figures: dict[str, object] = {
        "machine": torch.cuda.get_device_name() if "cuda" in device else platform.machine(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "target_parameters": sum(p.numel() for p in target.parameters()),
        "draft_parameters": sum(p.numel() for p in draft.parameters()),
    }
    figures |= evaluate.held_out_figures(
        target, draft, held_out, num_bytes=num_bytes, max_tokens=max_tokens
    )
    prompts = evaluate.held_out_prompts(held_out, num_prompts, 16)
    counts, texts = evaluate.run_token_rule(target, draft, prompts)
    figures |= {"num_prompts": len(prompts)} | counts.figures()
    pairs = list(zip(prompts, texts, strict=True))[:12]
    figures["samples"] = [evaluate.as_text(tokenizer, prompt, text) for prompt, text in pairs]
    return figures


def write_json(path: Path, content: object) -> None:
    """Writes readable JSON."""
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def curve_record(curve: Curve, budget: Budget, shape: shapes.Shape) -> dict[str, object]:
    """A loss curve with what produced it."""
    return {
        "name": curve.name,
        "shape": shape.as_dict(),
        "budget": vars(budget),
        "columns": ["step", "seconds", "train_loss", "held_out_loss"],
        "points": curve.points,
    }


def prepare(
    corpus: list[Path], vocab_size: int, device: str, known: Path | None = None
) -> tuple[PreTrainedTokenizerFast, Tokens, Tokens, int]:
    """Trains or loads the tokenizer, encodes both splits; also the bytes of the held-out text."""
    texts, held_out_texts = load_texts(corpus)
    if known is None:
        tokenizer = train_tokenizer(texts[:50_000], vocab_size)
    else:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(known)
    tokens = encode(texts, tokenizer).to(device)
    held_out = encode(held_out_texts, tokenizer).to(device)
    print(f"{len(texts)} documents, {len(tokens.ids)} tokens, held out {len(held_out.ids)}")
    return tokenizer, tokens, held_out, sum(len(text.encode()) + 1 for text in held_out_texts)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that every training command shares."""
    parser.add_argument("--corpus", type=Path, nargs="+", required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--recipe", choices=sorted(RECIPES), default="good")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=2, help="threads of a CPU training")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("--target", type=Path, help="a trained target: only the draft is trained")
    args = parser.parse_args()
    recipe, device, begin = RECIPES[args.recipe], args.device, time.monotonic()
    compiled = "cuda" in device
    torch.set_num_threads(args.threads)
    prepared = prepare(args.corpus, recipe.vocab_size, device, args.target)
    tokenizer, tokens, held_out, num_bytes = prepared
    eos = tokenizer.eos_token_id
    shape, budget = shapes.TARGETS[recipe.target], recipe.target_budget
    curves = []
    if args.target:
        target = load_model(args.target, device)
    else:
        target = shapes.build(shape, recipe.vocab_size, eos).to(device)
        curve = train_target(target, tokens, held_out, budget, compiled=compiled)
        curves.append(curve_record(curve, budget, shape))
    save_model(target, tokenizer, args.output / "target")
    target = target.to(device, torch.float32)
    if recipe.own_text_seconds:
        own = sample_own_texts(
            target, tokens, seconds=recipe.own_text_seconds, batch=recipe.own_text_batch
        )
        tokens = tokens.join(own)
    shape, budget = shapes.DRAFTS[recipe.draft], recipe.draft_budget
    draft = shapes.build(shape, recipe.vocab_size, eos).to(device)
    curve = distill.distill_draft(draft, target, tokens, held_out, budget, compiled=compiled)
    curves.append(curve_record(curve, budget, shape))
    save_model(draft, tokenizer, args.output / "draft")
    write_json(args.output / "curves.json", curves)
    count, limit = (200, 400_000) if compiled else (32, 40_000)
    figures = evaluate_pair(
        args.output, tokenizer, held_out, num_bytes, device, num_prompts=count, max_tokens=limit
    )
    figures["seconds"] = round(time.monotonic() - begin, 1)
    write_json(args.output / "evaluation.json", figures)
    print(json.dumps({k: v for k, v in figures.items() if k != "samples"}, indent=1))


if __name__ == "__main__":
    main()
