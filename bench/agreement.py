"""The gate before any timing: greedy texts of all decoders are the same tokens."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from report import CheckError
from subjects import Job, hf_decoder, our_decoder

from fairdraft import LLM
from fairdraft.models import CausalLM

#: a gap below this multiple of the measured logit difference of two paths is a tie
TIE_FACTOR = 4


def check_greedy(
    llms: dict[str, LLM], stock: Any, prompts: list[list[int]], num_tokens: int
) -> dict[str, Any]:
    """Compares the greedy ids of each engine, and of `transformers`, with those of plain decoding.

    Args:
        llms: Engines by mode; "plain" is what the others are compared with.
        stock: The target's network as `transformers` loads it.
        prompts: Ids of each prompt.
        num_tokens: New tokens of each.

    Returns:
        Counts of texts, tokens and ties, and the logit difference that a tie is judged by.

    Raises:
        CheckError: If two texts differ at a token that is no tie.
    """
    jobs = [Job([ids], num_tokens, temperature=0.0, seed=0) for ids in prompts]
    decoders = {name: our_decoder(llm) for name, llm in llms.items()}
    plain = decoders.pop("plain")
    expected = [plain(job).token_ids[0] for job in jobs]
    target = llms["plain"].target
    difference = max(
        logit_difference(target, stock, [*job.prompts[0], *ids])
        for job, ids in zip(jobs, expected, strict=True)
    )
    ties, num_texts = [], 0
    for name, decoder in {**decoders, "hf plain": hf_decoder(stock)}.items():
        for job, ids in zip(jobs, expected, strict=True):
            found = decoder(job).token_ids[0]
            num_texts += 1
            if found == ids:
                continue
            gap = _gap(target, job.prompts[0], ids, found)
            if gap >= TIE_FACTOR * difference:
                raise CheckError(
                    f"greedy text of {name!r} is not that of plain decoding: a logit gap of "
                    f"{gap:.3g} where two paths differ by {difference:.3g}"
                )
            ties.append({"decoder": name, "gap": gap})
    return {
        "texts": num_texts,
        "tokens": num_texts * num_tokens,
        "ties": ties,
        "logit_difference": difference,
    }


@torch.inference_mode()
def logit_difference(target: CausalLM, stock: Any, token_ids: list[int], width: int = 5) -> float:
    """Largest logit difference of the stock network, our forward token by token, and in blocks."""
    ids = torch.tensor([token_ids], device=target.device)
    paths = [stock(input_ids=ids, use_cache=False).logits.float()]
    for block in (1, width):
        cache = target.new_cache()
        bounds = [*range(0, len(token_ids), block), len(token_ids)]
        parts = [
            target.forward(ids[:, begin:end], torch.tensor([begin]), cache)
            for begin, end in pairwise(bounds)
        ]
        paths.append(torch.cat(parts, dim=1))
    return max(float((a - b).abs().max()) for a, b in ((paths[0], paths[1]), (paths[1], paths[2])))


@torch.inference_mode()
def _gap(target: CausalLM, prompt: list[int], expected: list[int], found: list[int]) -> float:
    """The logit gap of the two tokens where the texts part."""
    first = next((i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), None)
    if first is None:
        return float("inf")
    ids = torch.tensor([[*prompt, *expected[:first]]], device=target.device)
    logits = target.model(input_ids=ids, use_cache=False).logits[0, -1].float()
    return float((logits[expected[first]] - logits[found[first]]).abs())
