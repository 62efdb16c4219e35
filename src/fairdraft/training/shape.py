"""What may be chosen about a head that is trained, and what follows from its target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fairdraft.models import CausalLM
from fairdraft.speculators.heads import default_feature_layers

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


def base_shape(target: CausalLM, shape: HeadShape, num_ids: int, num_drafts: int) -> dict[str, Any]:
    """What every kind of head takes from its target: the arguments of a `HeadConfig`."""
    text = target.text_config
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
    text = target.text_config
    layers = shape.feature_layers or default_feature_layers(text.num_hidden_layers)
    if max(layers) > text.num_hidden_layers:
        raise ValueError(
            f"feature layers {list(layers)}: {target.name!r} has the states 0 to "
            f"{text.num_hidden_layers}"
        )
    return tuple(layers)


def last_layer(target: CausalLM, shape: HeadShape, kind: str) -> tuple[int]:
    """The last state, for a head that reads it alone.

    Args:
        target: Whose state it is.
        shape: Of the head.
        kind: What messages call the head.

    Raises:
        ValueError: If other states are asked for.
    """
    last = (target.text_config.num_hidden_layers,)
    if shape.feature_layers not in (None, last):
        raise ValueError(
            f"feature layers {list(shape.feature_layers or ())}: {kind} reads the last state, "
            f"{last[0]}, alone"
        )
    return last
