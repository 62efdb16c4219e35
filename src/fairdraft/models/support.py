"""What a model's configuration says about whether its past can be rolled back."""

from __future__ import annotations

from typing import Any

from fairdraft.models.masks import AttentionKind

__all__ = ["attention_kinds", "check_config", "check_rope", "max_context", "recurrent_message"]

# what the probe needs to roll back and continue
MIN_CONTEXT = 4
_MAX_VOCAB_SIZE = 2**24
_RECURRENT_MARKS = (
    "mamba_d_state",
    "mamba_d_conv",
    "mamba_expand",
    "ssm_state_size",
    "state_size",
    "layers_block_type",
    "hybrid_override_pattern",
    "attn_layer_period",
    "linear_conv_kernel_dim",
    "conv_L_cache",
    "time_mix_extra_dim",
    "wkv_hidden_size",
    "lru_width",
)
_RECURRENT_LAYERS = {"linear_attention", "conv", "hybrid", "hybrid_sliding", "mamba", "recurrent"}
_KIND_OF_LAYER = {
    "full_attention": ("full", None),
    "sliding_attention": ("sliding", "sliding_window"),
    "chunked_attention": ("chunked", "attention_chunk_size"),
}


def check_config(config: Any, name: str) -> None:
    """Refuses configurations that no cache of keys and values can serve.

    Args:
        config: A transformers configuration, whole or its text part.
        name: What messages call the model.

    Raises:
        ValueError: For an encoder-decoder, a recurrent or hybrid model, a bidirectional one, or
            a vocabulary wider than 2^24.
    """
    model_type = getattr(config, "model_type", "unknown")
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(
            f"{name!r} is an encoder-decoder ({model_type}); pass a decoder-only causal LM."
        )
    config = config.get_text_config(decoder=True)
    layer_types = getattr(config, "layer_types", None) or ()
    recurrent = sorted(set(layer_types) & _RECURRENT_LAYERS)
    if recurrent:
        reason = f"it has layers of type {', '.join(recurrent)}"
        raise ValueError(recurrent_message(name, model_type, reason))
    marks = [mark for mark in _RECURRENT_MARKS if getattr(config, mark, None) is not None]
    if marks:
        raise ValueError(recurrent_message(name, model_type, f"its config sets {marks[0]}"))
    if getattr(config, "use_bidirectional_attention", None) or not getattr(
        config, "is_causal", True
    ):
        raise ValueError(f"{name!r} ({model_type}) attends to later tokens; pass a causal LM.")
    vocab_size = getattr(config, "vocab_size", None)
    if not isinstance(vocab_size, int) or vocab_size < 1:
        raise ValueError(f"{name!r} has vocab_size = {vocab_size!r} in config.json; it needs one.")
    if vocab_size > _MAX_VOCAB_SIZE:
        raise ValueError(
            f"{name!r} has a vocabulary of {vocab_size}; at most 2^24 = {_MAX_VOCAB_SIZE} ids "
            "have noise addresses."
        )


def recurrent_message(name: str, model_type: str, reason: str) -> str:
    """Words the refusal of a model whose state has already consumed rejected tokens."""
    return (
        f"{name!r} ({model_type}) keeps a recurrent state: {reason}. A rejected token cannot be "
        "taken out of such a state, so speculation would silently change the text; pass a model "
        "whose layers are all attention."
    )


def attention_kinds(config: Any, name: str) -> dict[str, AttentionKind]:
    """Lists the reach of each layer type that a model has.

    Args:
        config: The text part of a transformers configuration.
        name: What messages call the model.

    Returns:
        Layer type to reach, in the order of appearance.

    Raises:
        ValueError: If a layer is neither full, sliding nor chunked attention.
    """
    layer_types = getattr(config, "layer_types", None)
    if layer_types is None:
        layer_types = ["full_attention"]
        # transformers' Llama has no window, whatever a configuration says
        is_llama = getattr(config, "model_type", None) == "llama"
        if getattr(config, "sliding_window", None) is not None and not is_llama:
            layer_types = ["sliding_attention"]
        elif getattr(config, "attention_chunk_size", None) is not None:
            layer_types = ["chunked_attention"]
    unknown = sorted({str(t) for t in layer_types} - set(_KIND_OF_LAYER))
    if unknown:
        raise ValueError(
            f"{name!r} ({getattr(config, 'model_type', 'unknown')}) has layers of type "
            f"{', '.join(unknown)}; only {', '.join(_KIND_OF_LAYER)} can be rolled back."
        )
    kinds = {}
    for layer_type in dict.fromkeys(layer_types):
        kind, field = _KIND_OF_LAYER[layer_type]
        size = None if field is None else getattr(config, field, None)
        if field is not None and (not isinstance(size, int) or size < 1):
            raise ValueError(f"{name!r} has {layer_type} layers and {field} = {size!r}.")
        kinds[layer_type] = AttentionKind(kind, size)  # pyright: ignore[reportArgumentType]
    return kinds


def max_context(config: Any, name: str, wanted: int | None) -> int:
    """Settles the context limit, prompt and output together.

    Args:
        config: The text part of a transformers configuration.
        name: What messages call the model.
        wanted: The caller's limit, or None for the model's own.

    Returns:
        Number of positions.

    Raises:
        ValueError: If the wanted limit is above the model's, below 4, or nobody states one; or
            if positions past a point would rescale the rotary embedding of the whole batch.
    """
    stated = getattr(config, "max_position_embeddings", None)
    if wanted is not None and wanted < MIN_CONTEXT:
        raise ValueError(f"max_model_len = {wanted}; it must be at least {MIN_CONTEXT}.")
    if stated is None and wanted is None:
        raise ValueError(f"{name!r} states no context limit; pass max_model_len.")
    if stated is not None and wanted is not None and wanted > stated:
        raise ValueError(
            f"max_model_len = {wanted} is above the {stated} positions that {name!r} was made "
            f"for; pass at most {stated}."
        )
    limit = wanted if wanted is not None else stated
    assert limit is not None
    check_rope(config, name, limit)
    return limit


def check_rope(config: Any, name: str, limit: int) -> None:
    """Refuses rotary embeddings whose frequencies follow the longest text of the batch.

    Args:
        config: The text part of a transformers configuration.
        name: What messages call the model.
        limit: The context limit in force.

    Raises:
        ValueError: If a position below `limit` would change the frequencies.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in rope.values() if isinstance(value, dict)]
    for parameters in nested or [rope]:
        # "dynamic" changes past max_position_embeddings only, where no limit reaches
        if parameters.get("rope_type") != "longrope":
            continue
        original = parameters["original_max_position_embeddings"]
        if limit > original:
            raise ValueError(
                f"{name!r} uses longrope, which turns every request of a batch by other angles "
                f"once one passes {original} tokens; pass max_model_len={original} or less."
            )
