"""Training a head, from a target and a corpus to a checkpoint with its figures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairdraft.engine import LLM
from fairdraft.models import CausalLM
from fairdraft.speculators.heads import (
    DflashHead,
    Head,
    SharedKvHead,
    SlotHead,
    save_head,
)
from fairdraft.training.acceptance import measure_acceptance
from fairdraft.training.blocks import BlockLosses
from fairdraft.training.corpus import Corpus
from fairdraft.training.kinds import new_head
from fairdraft.training.loop import Loop, Say
from fairdraft.training.losses import Losses
from fairdraft.training.picture import draw_curves
from fairdraft.training.recall import RecallLosses
from fairdraft.training.settings import Settings
from fairdraft.training.shape import HeadShape
from fairdraft.training.teacher import Teacher
from fairdraft.training.ttt import SlotLosses
from fairdraft.training.warm_start import digest_of, load_for_training


def train_head(
    kind: str,
    target: CausalLM,
    corpus: Corpus,
    folder: Path,
    settings: Settings,
    shape: HeadShape | None = None,
    *,
    begin_with: Path | None = None,
    resume: bool = False,
    num_prompts: int = 64,
    compiled: bool = False,
    say: Say = print,
) -> dict[str, Any]:
    """Trains a head for a target that stays as it is.

    Writes the head (`config.json`, `model.safetensors`), `training.json` with settings, curves and
    measured acceptance, `curves.png`, and until that is done `training.pt` to resume from.

    Args:
        kind: The method that it is for, one of `KINDS`.
        target: The frozen target; the head is trained on its device.
        corpus: Text, split here into training and held-out documents.
        folder: Where everything goes.
        settings: How long and with which loss.
        shape: What differs from the target's own layers.
        begin_with: Folder of a head to train further, which keeps its shape and the ids that it
            drafts; None begins with random weights. Its optimizer begins anew, so a warm-up of a
            few percent is wanted.
        resume: Goes on from the folder's checkpoint, if it has one.
        num_prompts: Held-out prompts on which acceptance is measured at the end; 0 for none.
        compiled: Compiles the loss (a GPU).
        say: Takes lines of progress.

    Returns:
        What `training.json` holds.

    Raises:
        ValueError: If there is no such kind, the corpus is too short, or the shape or the head
            to begin with does not fit.
    """
    train, held_out = _prepared(corpus, settings, target)
    prompts = held_out.prompts(num_prompts, _prompt_length(held_out)) if num_prompts else []
    origin = {"corpus": corpus.digest, "head": kind}
    if begin_with is None:
        head = _random_head(kind, target, train, settings, shape or HeadShape())
    elif shape is None:
        head = load_for_training(kind, begin_with, target, settings.num_drafts)
        origin["begins_with"] = digest_of(head)
    else:
        raise ValueError("a training that begins with a saved head has its shape; leave shape out")
    ids, learned = head.target_ids, train.counted_ids
    coverage = float(torch.isin(learned, ids.to(learned.device)).double().mean())
    own = head.own_parameters()
    count = sum(p.numel() for p in own.values())
    say(f"{count:,} parameters, {len(ids)} ids that cover {coverage:.2%} of the text")
    teacher = Teacher(target, ids, memory_layers(head))
    losses_of = new_losses(head.train(), settings, compiled=compiled)

    def losses_at(step: int) -> Losses:
        part = held_out if step < 0 else train
        generator = torch.Generator(part.ids.device)
        generator.manual_seed((settings.seed << 32) + step + 1)
        places = part.places(settings.batch, settings.width, generator)
        window = part.ids[places].long()
        # the laws are those after each id but the first
        counted = part.counted_after(places[:, 1:])
        states, probs = teacher(window, head.config.feature_layers, settings.length)
        device = window.device.type
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            return losses_of(window, states, probs, generator, counted)

    loop = Loop(own, losses_at, settings, origin | asdict(head.config), folder, say)
    with tensor_float32():
        points = loop.run(resume=resume)
    head.eval()
    save_head(head, folder)
    draw_curves(points, folder / "curves.png", f"{kind} head for {target.name}")
    report: dict[str, Any] = {
        "settings": settings.as_dict(),
        "shape": asdict(head.config),
        "parameters": count,
        "vocabulary_coverage": round(coverage, 5),
        "points": [asdict(point) for point in points],
    }
    if prompts:
        most = num_measured(head)
        report["acceptance"] = measured(target, folder, prompts, num_drafts=most, say=say)
    text = json.dumps(report, indent=1, default=list) + "\n"
    (folder / "training.json").write_text(text, encoding="utf-8")
    loop.forget()
    return report


def memory_layers(head: Head) -> list[int]:
    """Layers of the target whose keys and values a head attends to, ascending."""
    return sorted(set(head.config.memory_layers)) if isinstance(head, SharedKvHead) else []


def new_losses(
    head: Head, settings: Settings, *, compiled: bool
) -> SlotLosses | BlockLosses | RecallLosses:
    """The losses that a kind of head is trained with."""
    if isinstance(head, SharedKvHead):
        return RecallLosses(head, settings, compiled=compiled)
    if isinstance(head, DflashHead):
        return BlockLosses(head, settings, compiled=compiled)
    assert isinstance(head, SlotHead)
    return SlotLosses(head, settings, compiled=compiled)


def num_measured(head: Head) -> int:
    """Drafts a round that acceptance is measured with: 4, or all that a head is capable of."""
    if isinstance(head, DflashHead):
        return min(4, head.config.num_drafts)
    return min(4, head.num_modules) if head.num_modules > 1 else 4


def measured(
    target: CausalLM,
    model: str | Path,
    prompts: Sequence[list[int]],
    *,
    num_drafts: int = 4,
    temperatures: Sequence[float] = (0.0, 0.7, 1.0),
    say: Say = print,
) -> list[dict[str, Any]]:
    """Measures a saved head's, or a draft model's, acceptance length at some temperatures."""
    config = {"model": model, "num_speculative_tokens": num_drafts}
    device = str(target.device)
    llm = LLM(target, speculative_config=config, device=device)
    found = []
    for temperature in temperatures:
        result = measure_acceptance(llm, prompts, temperature)
        by_draft = " ".join(f"{value:.3f}" for value in result.by_draft)
        say(
            f"{model}, K = {num_drafts}, temperature {temperature}: acceptance length "
            f"{result.length:.3f} over {result.num_rounds} rounds, by draft {by_draft}"
        )
        found.append(result.as_dict())
    return found


@contextmanager
def tensor_float32() -> Iterator[None]:
    """Lets float32 products on a GPU round their inputs; what a head learns does not need more."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def frequent_ids(corpus: Corpus, target: CausalLM, count: int | None) -> Tensor:
    """The ids that a head can draft: the most frequent that count, and the end tokens.

    Args:
        corpus: Training documents.
        target: Whose ids they are.
        count: How many; None for all.

    Returns:
        int64, ascending.

    Raises:
        ValueError: If the count is not from 1 to the target's vocabulary.
    """
    size = target.vocab_size
    if count is None:
        return torch.arange(size)
    if not 1 <= count <= size:
        raise ValueError(f"draft_vocab_size = {count}: must be from 1 to {size}")
    counts = torch.bincount(corpus.counted_ids.long().cpu(), minlength=size)[:size]
    # end tokens first, then by count, ties to the lower id
    counts[[i for i in target.eos_token_ids if i < size]] = counts.sum() + 1
    return torch.sort(counts, descending=True, stable=True).indices[:count].sort().values


def _random_head(
    kind: str, target: CausalLM, train: Corpus, settings: Settings, shape: HeadShape
) -> Head:
    ids = frequent_ids(train, target, shape.draft_vocab_size)
    torch.manual_seed(settings.seed)
    return new_head(kind, target, shape, ids, settings.num_drafts)


def _prepared(corpus: Corpus, settings: Settings, target: CausalLM) -> tuple[Corpus, Corpus]:
    train, held_out = (part.to(target.device) for part in corpus.split())
    if settings.width > target.max_model_len:
        raise ValueError(
            f"length = {settings.length} with {settings.num_drafts} drafts passes the "
            f"{target.max_model_len} positions of {target.name!r}; pass a smaller length"
        )
    for part, what in ((train, "training"), (held_out, "held-out")):
        if len(part.ids) < settings.width:
            raise ValueError(
                f"the {what} text has {len(part.ids)} ids, and a window takes {settings.width}; "
                "pass more text or a smaller length"
            )
        if not len(part.counted_ids):
            raise ValueError(f"no id of the {what} text counts, so there is nothing to learn")
    return train, held_out


def _prompt_length(held_out: Corpus) -> int:
    """16 ids, or half of a usual document if that is less; a document has at least two."""
    usual = len(held_out.ids) // held_out.num_documents
    return max(1, min(16, usual // 2))
