"""A few tokens through a freshly loaded model, to see whether rolling it back works."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fairdraft.models.blocks import TreeBlock
from fairdraft.models.causal_lm import CausalLM

__all__ = ["check_rollback", "check_trees"]

_TOLERANCE = {
    torch.float64: 1e-4,
    torch.float32: 2e-3,
    torch.float16: 3e-2,
    torch.bfloat16: 1e-1,
}

# two siblings, and one below each
_PARENTS = (0, 0, 1, 2)


def check_rollback(lm: CausalLM) -> None:
    """Compares ragged, rolled-back forwards with forwards of the same texts from scratch.

    Two rows of different length are forwarded, rolled back to different points and continued
    with other tokens; then one of them is continued alone, as one row may take another way.
    A state that cannot forget, positions that are not honored, or a mask that is ignored shows in
    the logits. About ten tokens in five forwards.

    Args:
        lm: The adapter to try; its counters are reset afterwards.

    Raises:
        ValueError: If the model does not take the cache, or if the logits differ.
    """
    _compare(
        lm,
        _rolled_back,
        "be rolled back by position: after rejected tokens",
        "Pass a causal LM whose past is keys and values only.",
    )


def check_trees(lm: CausalLM) -> None:
    """Compares the nodes of a small tree with forwards of their paths from scratch.

    A model that takes the place of a token in the cache for its position, or that ignores the
    mask, shows in the logits.

    Args:
        lm: The adapter to try; its counters are reset afterwards.

    Raises:
        ValueError: If the logits differ.
    """
    if lm.max_model_len < 2 + len(_PARENTS):
        return
    _compare(
        lm, _in_a_tree, "forward trees: at a node", "Leave speculative_token_tree out and use K."
    )


def _compare(
    lm: CausalLM, forward: Callable[[CausalLM], tuple[Tensor, Tensor]], fails: str, way_out: str
) -> None:
    kind = type(lm.model).__name__
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found, expected = forward(lm)
    except Exception as error:
        raise ValueError(
            f"{lm.name!r} ({kind}) does not work with a cache that is rolled back by position: "
            f"{type(error).__name__}: {error}"
        ) from error
    finally:
        lm.reset_counters()
    # what both forwards get wrong in the same way is the request's business
    known = torch.isfinite(expected)
    if not torch.equal(torch.isfinite(found), known):
        raise ValueError(
            f"{lm.name!r} ({kind}) cannot {fails} its logits are NaN or infinite, and finite from "
            "scratch; it cannot be served so."
        )
    if not known.any():
        return
    # the largest of 200,000 differences in half precision is a tenth of the spread for no fault
    difference = float((found - expected)[known].square().mean().sqrt())
    spread = float(expected[known].std()) if int(known.sum()) > 1 else 1.0
    if difference > _TOLERANCE.get(lm.dtype, 1e-1) * max(spread, 1e-6):
        raise ValueError(
            f"{lm.name!r} ({kind}) cannot {fails} its logits differ from those of the same text "
            f"from scratch by {difference:.2g} (their spread is {spread:.2g}). {way_out}"
        )


@torch.inference_mode()
def _in_a_tree(lm: CausalLM) -> tuple[Tensor, Tensor]:
    paths = [[0]]
    for node, parent in enumerate(_PARENTS, start=1):
        paths.append([*paths[parent], node])
    is_seen = np.array([[c in path for c in range(len(paths))] for path in paths])
    depths = np.array([len(path) - 1 for path in paths])
    ids = (torch.arange(2 + len(_PARENTS)) * 7 + 3) % lm.vocab_size
    block = TreeBlock(np.array([2]), depths, is_seen, first=0)
    cache = lm.new_cache()
    lm.forward(ids[None, :1], torch.tensor([0]), cache)
    start = torch.tensor([1])
    found = lm.forward(ids[None, 1:], start, cache, tree=block, logits_dtype=torch.float64)
    expected = []
    for path in paths:
        text = ids[[0, *(1 + node for node in path)]][None].to(lm.device)
        logits = lm.model(input_ids=text, use_cache=False).logits
        expected.append(logits[0, -1].to(torch.float64))
    return found[0], torch.stack(expected)


@torch.inference_mode()
def _rolled_back(lm: CausalLM) -> tuple[Tensor, Tensor]:
    width = min(6, lm.max_model_len)
    num_ids = lm.vocab_size
    first = (torch.arange(2 * width).reshape(2, width) * 7 + 3) % num_ids
    other = (torch.arange(4).reshape(2, 2) * 5 + 1) % num_ids
    starts = [2, 1]
    cache = lm.new_cache(2, width)
    lm.forward(first, torch.tensor([0, 0]), cache, num_tokens=torch.tensor([width, 3]))
    found = lm.forward(other, torch.tensor(starts), cache, logits_dtype=torch.float64)
    at = torch.tensor(starts[:1])
    alone = lm.forward(other[:1], at, cache, logits_dtype=torch.float64)
    expected = []
    for row, start in enumerate(starts):
        ids = torch.cat([first[row, :start], other[row]])[None].to(lm.device)
        logits = lm.model(input_ids=ids, use_cache=False).logits
        expected.append(logits[0, start:].to(torch.float64))
    return torch.cat([found, alone]), torch.stack([*expected, expected[0]])
