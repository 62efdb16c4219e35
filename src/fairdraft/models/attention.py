"""Attention of a short block of queries over long rows, without copying keys for their groups.

Axes: B rows, H query heads, G key/value heads (H / G queries share one), Q queries, L slots.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

__all__ = ["NAME", "attend", "use_grouped_attention"]

NAME = "fairdraft_grouped"

# a long block is bound by its arithmetic, and the mask would be repeated for nothing
_MAX_QUERIES = 32


def use_grouped_attention(model: PreTrainedModel) -> bool:
    """Switches a network that computes with `sdpa` to grouped attention, if it can.

    Args:
        model: Changed in place.

    Returns:
        Whether it was switched.
    """
    if model.config._attn_implementation != "sdpa":
        return False
    AttentionInterface.register(NAME, _grouped_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)
    return model.config._attn_implementation == NAME


def _grouped_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    is_short = query.shape[2] <= _MAX_QUERIES and not dropout
    is_special = kwargs.get("position_bias") is not None or kwargs.get("softcap") is not None
    # a mask a head would have to be grouped too
    if attention_mask is None or attention_mask.shape[1] != 1 or is_special or not is_short:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, **kwargs
        )
    output = attend(query, key, value, attention_mask, scaling)
    return output, None


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None) -> Tensor:
    """Attends without copying keys: the heads of a group become more queries of one head.

    Args:
        query: [B, H, Q, D].
        key: [B, G, L, D].
        value: [B, G, L, D'].
        mask: Additive [B, 1, Q, L] or [1, 1, Q, L].
        scale: Of the scores; None for 1 / sqrt(D).

    Returns:
        [B, Q, H, D'].
    """
    num_rows, num_heads, num_queries, head_dim = query.shape
    num_groups = key.shape[1]
    share = num_heads // num_groups
    if num_queries > _MAX_QUERIES:
        output = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=scale, enable_gqa=share > 1
        )
        return output.transpose(1, 2).contiguous()
    grouped = query.reshape(num_rows, num_groups, share * num_queries, head_dim)
    output = functional.scaled_dot_product_attention(
        grouped, key, value, attn_mask=_grouped_mask(mask, share), scale=scale
    )
    output = output.reshape(num_rows, num_heads, num_queries, value.shape[-1])
    return output.transpose(1, 2).contiguous()


# every layer of a forward is given the same mask object, which keeps its grouped form
def _grouped_mask(mask: Tensor, share: int) -> Tensor:
    if share == 1 or mask.shape[2] == 1:
        return mask
    kept = getattr(mask, "grouped", None)
    if kept is None or kept[0] != share:
        kept = share, mask.repeat(1, 1, share, 1)
        mask.grouped = kept  # pyright: ignore[reportAttributeAccessIssue]
    return kept[1]
