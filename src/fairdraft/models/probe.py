"""A few tokens through a freshly loaded model, to see whether rolling it back works."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from fairdraft.models.causal_lm import CausalLM

__all__ = ["check_rollback"]

_TOLERANCE = {
    torch.float64: 1e-4,
    torch.float32: 2e-3,
    torch.float16: 3e-2,
    torch.bfloat16: 1e-1,
}


def check_rollback(lm: CausalLM) -> None:
    """Compares ragged, rolled-back forwards with forwards of the same texts from scratch.

    Two rows of different length are forwarded, rolled back to different points and continued
    with other tokens. A state that cannot forget, positions that are not honored, or a mask
    that is ignored shows in the logits. About ten tokens in four forwards.

    Args:
        lm: The adapter to try; its counters are reset afterwards.

    Raises:
        ValueError: If the model does not take the cache, or if the logits differ.
    """
    kind = type(lm.model).__name__
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found, expected = _rolled_back(lm)
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
            f"{lm.name!r} ({kind}) returns NaN or infinite logits after a rollback, but finite "
            "ones from scratch; it cannot be served."
        )
    if not known.any():
        return
    difference = float((found - expected)[known].abs().max())
    spread = float(expected[known].std()) if int(known.sum()) > 1 else 1.0
    if difference > _TOLERANCE.get(lm.dtype, 1e-1) * max(spread, 1e-6):
        raise ValueError(
            f"{lm.name!r} ({kind}) cannot be rolled back by position: after rejected tokens its "
            f"logits differ from those of the same text from scratch by {difference:.2g} (their "
            f"spread is {spread:.2g}). Pass a causal LM whose past is keys and values only."
        )


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
    expected = []
    for row, start in enumerate(starts):
        ids = torch.cat([first[row, :start], other[row]])[None].to(lm.device)
        logits = lm.model(input_ids=ids, use_cache=False).logits
        expected.append(logits[0, start:].to(torch.float64))
    return found, torch.stack(expected)
