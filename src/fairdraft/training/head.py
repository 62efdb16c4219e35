"""Training a head, from a target and a corpus to a checkpoint with its figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
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
    default_feature_layers,
    join,
    save_head,
)
from fairdraft.training.acceptance import measure_acceptance
from fairdraft.training.blocks import BlockLosses
from fairdraft.training.corpus import Corpus
from fairdraft.training.loop import Loop, Say
from fairdraft.training.losses import Losses
from fairdraft.training.picture import draw_curves
from fairdraft.training.recall import RecallLosses
from fairdraft.training.settings import Settings
from fairdraft.training.teacher import Teacher
from fairdraft.training.ttt import SlotLosses

#: what one kind of head has, and why the others refuse it
_FOREIGN = {
    "markov_rank": "has no such bias",
    "selector_rank": "has no candidates",
    "selector_top_k": "has no candidates",
    "memory_layers": "has keys of its own",
}


@dataclass(frozen=True)
class HeadShape:
    """What may be chosen about a head; None takes the target's own.

    Attributes:
        feature_layers: States that are read; see `default_feature_layers`.
        draft_vocab_size: Ids that it can draft: the most frequent ones of the corpus.
        num_attention_heads: Query heads.
        num_key_value_heads: Key/value heads.
        intermediate_size: Width of the MLP.
        num_modules: Of a head for multi-token prediction, which reads the last state alone: 1 to
            apply one again to its own output, or as many as drafts a round.
        num_layers: Of a DFlash, DFlash2 or DSpark head.
        markov_rank: Of the bias of a DSpark head.
        selector_rank: Of the candidates' scores of a DFlash2 head.
        selector_top_k: Candidates of a DFlash2 head.
        memory_layers: Layers of the target, from 0, that a head without keys of its own attends
            to, one for each of its layers; None for the last one that keeps every token.
    """

    feature_layers: tuple[int, ...] | None = None
    draft_vocab_size: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    intermediate_size: int | None = None
    num_modules: int | None = None
    num_layers: int | None = None
    markov_rank: int | None = None
    selector_rank: int | None = None
    selector_top_k: int | None = None
    memory_layers: tuple[int, ...] | None = None

    def refuse(self, kind: str, *, own: Sequence[str] = (), **reasons: str) -> None:
        """Refuses what a kind of head has no use for.

        Args:
            kind: What messages call the head.
            own: What it has of that which one kind alone has.
            reasons: By the name of what else must be left out.

        Raises:
            ValueError: If one of them is given.
        """
        foreign = {name: reason for name, reason in _FOREIGN.items() if name not in own}
        for name, reason in (foreign | reasons).items():
            if getattr(self, name) is not None:
                raise ValueError(f"{name} = {getattr(self, name)}: {kind} {reason}")


#: target, shape, the ids that it drafts and the drafts a round to a head without its target's rows
NewHead = Callable[[CausalLM, HeadShape, Tensor, int], Head]


def train_head(
    kind: str,
    new_head: NewHead,
    target: CausalLM,
    corpus: Corpus,
    folder: Path,
    settings: Settings,
    shape: HeadShape | None = None,
    *,
    resume: bool = False,
    num_prompts: int = 64,
    compiled: bool = False,
    say: Say = print,
) -> dict[str, Any]:
    """Trains a head for a target that stays as it is.

    Writes the head (`config.json`, `model.safetensors`), `training.json` with settings, curves and
    measured acceptance, `curves.png`, and until that is done `training.pt` to resume from.

    Args:
        kind: What pictures call the head.
        new_head: Makes it.
        target: The frozen target; the head is trained on its device.
        corpus: Text, split here into training and held-out documents.
        folder: Where everything goes.
        settings: How long and with which loss.
        shape: What differs from the target's own layers.
        resume: Goes on from the folder's checkpoint, if it has one.
        num_prompts: Held-out prompts on which acceptance is measured at the end; 0 for none.
        compiled: Compiles the loss (a GPU).
        say: Takes lines of progress.

    Returns:
        What `training.json` holds.

    Raises:
        ValueError: If the corpus is too short or the shape does not fit the target.
    """
    train, held_out = _prepared(corpus, settings, target)
    prompts = held_out.prompts(num_prompts, _prompt_length(held_out)) if num_prompts else []
    shape = shape or HeadShape()
    ids = frequent_ids(train, target, shape.draft_vocab_size)
    torch.manual_seed(settings.seed)
    head = new_head(target, shape, ids, settings.num_drafts)
    coverage = float(torch.isin(train.ids, ids.to(train.ids.device)).double().mean())
    own = head.own_parameters()
    count = sum(p.numel() for p in own.values())
    say(f"{count:,} parameters, {len(ids)} ids that cover {coverage:.2%} of the text")
    teacher = Teacher(target, ids, memory_layers(head))
    losses_of = new_losses(head.train(), settings, compiled=compiled)

    def losses_at(step: int) -> Losses:
        part = held_out if step < 0 else train
        generator = torch.Generator(part.ids.device)
        generator.manual_seed((settings.seed << 32) + step + 1)
        window = part.windows(settings.batch, settings.width, generator)
        states, probs = teacher(window, head.config.feature_layers, settings.length)
        device = window.device.type
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            return losses_of(window, states, probs, generator)

    origin = {"corpus": corpus.digest, "head": kind, **asdict(head.config)}
    loop = Loop(own, losses_at, settings, origin, folder, say)
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


def base_shape(target: CausalLM, shape: HeadShape, num_ids: int, num_drafts: int) -> dict[str, Any]:
    """What every kind of head takes from its target: the arguments of a `HeadConfig`."""
    text: Any = target.model.config.get_text_config(decoder=True)
    num_heads = shape.num_attention_heads or text.num_attention_heads
    rope = getattr(text, "rope_parameters", None) or {}
    return {
        "hidden_size": text.hidden_size,
        "intermediate_size": shape.intermediate_size or getattr(text, "intermediate_size", 0),
        "num_attention_heads": num_heads,
        "num_key_value_heads": shape.num_key_value_heads
        or getattr(text, "num_key_value_heads", num_heads),
        "head_dim": getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
        "vocab_size": target.vocab_size,
        "draft_vocab_size": num_ids,
        "target_hidden_size": text.hidden_size,
        "max_position_embeddings": target.max_model_len,
        "rms_norm_eps": getattr(text, "rms_norm_eps", 1e-5),
        # the head's own rotations: those of a target that scales them per layer would not fit
        "rope_parameters": {"rope_type": "default", "rope_theta": rope.get("rope_theta", 10000.0)},
        "target_layers": text.num_hidden_layers,
        "num_trained_steps": num_drafts,
        "target_name": target.name,
    }


def chosen_layers(target: CausalLM, shape: HeadShape) -> tuple[int, ...]:
    """The states that a head of several reads.

    Raises:
        ValueError: If the target has not all that are asked for.
    """
    text: Any = target.model.config.get_text_config(decoder=True)
    layers = shape.feature_layers or default_feature_layers(text.num_hidden_layers)
    if max(layers) > text.num_hidden_layers:
        raise ValueError(
            f"feature layers {list(layers)}: {target.name!r} has the states 0 to "
            f"{text.num_hidden_layers}"
        )
    return tuple(layers)


def settled(head: Head, target: CausalLM) -> Head:
    """Gives a new head random weights and its target's rows."""
    with torch.no_grad():
        for name, parameter in head.own_parameters().items():
            if parameter.ndim >= 2:
                scale = 0.02 if "o_proj" in name or "down_proj" in name else None
                deviation = scale or parameter.shape[1] ** -0.5
                parameter.normal_(0.0, deviation)
    head = head.to(target.device)
    join(head, target)
    return head


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
    """The ids that a head can draft: the most frequent ones of a corpus, and the end tokens.

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
    counts = torch.bincount(corpus.ids.long().cpu(), minlength=size)[:size]
    # end tokens first, then by count, ties to the lower id
    counts[[i for i in target.eos_token_ids if i < size]] = counts.sum() + 1
    return torch.sort(counts, descending=True, stable=True).indices[:count].sort().values


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
    return train, held_out


def _prompt_length(held_out: Corpus) -> int:
    """16 ids, or half of a usual document if that is less; a document has at least two."""
    usual = len(held_out.ids) // held_out.num_documents
    return max(1, min(16, usual // 2))
