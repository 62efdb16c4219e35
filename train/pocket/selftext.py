"""Texts drawn from the target itself: the draft is judged on them, so it is trained on them too."""

from __future__ import annotations

import copy

import torch
from transformers import LlamaForCausalLM

from train.pocket.data import Tokens
from train.pocket.teacher import Decoder, Sampling


def sample_own_texts(
    target: LlamaForCausalLM,
    tokens: Tokens,
    *,
    seconds: float,
    batch: int,
    length: int = 320,
    prompt_length: int = 8,
    max_steps: int = 8000,
    seed: int = 2,
) -> Tokens:
    """Continues beginnings of training documents at temperature 1.

    Args:
        target: The trained target.
        tokens: Training documents; the first `prompt_length` ids of some begin the new texts.
        seconds: How long to sample.
        batch: Rows that decode at the same time.
        length: Longest text.
        prompt_length: Ids of a beginning.
        max_steps: Most decode steps.
        seed: Seed of the choice of beginnings and of the draws.

    Returns:
        The texts with their beginnings, on the device of `tokens`.
    """
    device = tokens.ids.device
    torch.manual_seed(seed)
    eos = target.config.eos_token_id
    rows = max(2 * batch, batch * max_steps // 60)
    which = torch.randint(tokens.num_documents, (rows,), device=device)
    index = tokens.starts[which][:, None] + torch.arange(prompt_length, device=device)
    prompts = tokens.ids[index].long()
    on_gpu = device.type == "cuda"
    model = copy.deepcopy(target).to(torch.bfloat16) if on_gpu else target
    decoder = Decoder(
        model,
        prompts,
        torch.full((rows,), prompt_length),
        batch=batch,
        length=length,
        max_steps=max_steps,
        eos=[eos],
        sampling=Sampling(temperature=1.0, min_p=0.0, penalty=1.0),
        compiled=on_gpu,
    )
    decoder.run(max_steps, seconds)
    texts = decoder.texts()
    begin = prompts[list(texts)].cpu().tolist()
    whole = [head + body + [eos] for head, body in zip(begin, texts.values(), strict=True)]
    sizes = torch.tensor([len(ids) for ids in whole])
    ids = torch.tensor([i for ids in whole for i in ids], dtype=tokens.ids.dtype)
    print(f"self: {len(whole)} texts, {len(ids)} tokens")
    return Tokens(ids.to(device), (sizes.cumsum(0) - sizes).to(device))
