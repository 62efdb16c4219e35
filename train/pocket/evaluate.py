"""Evaluation of a pair: held-out losses, entropy, and acceptance measured by running the rule."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn import functional
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from train.pocket.data import Tokens


@torch.no_grad()
def held_out_figures(
    target: LlamaForCausalLM,
    draft: LlamaForCausalLM,
    tokens: Tokens,
    *,
    num_bytes: int,
    length: int = 512,
    max_tokens: int = 400_000,
    batch: int = 16,
) -> dict[str, float]:
    """Losses and divergences over consecutive windows of the held-out text, fp32.

    Args:
        target: The target.
        draft: The draft.
        tokens: Held-out documents.
        num_bytes: Bytes of the text behind all of `tokens`, for bits per byte.
        length: Window length in tokens; each window starts with no context.
        max_tokens: Stop after this many tokens.
        batch: Windows a forward.

    Returns:
        Nats a token: `target_loss`, `draft_loss`, `loss_gap`, `target_entropy`, `kl`; and
        `overlap` = mean sum_x min(p, q), `target_bits_per_byte`, `num_tokens`.
    """
    rows = min(len(tokens.ids) - 1, max_tokens) // length
    inputs = tokens.ids[: rows * length].view(rows, length).long()
    labels = tokens.ids[1 : rows * length + 1].view(rows, length).long()
    sums = dict.fromkeys(("target_loss", "draft_loss", "target_entropy", "kl", "overlap"), 0.0)
    for begin in range(0, rows, batch):
        ids, label = inputs[begin : begin + batch], labels[begin : begin + batch].flatten()
        log_p = target(input_ids=ids, use_cache=False).logits.float().log_softmax(-1).flatten(0, 1)
        log_q = draft(input_ids=ids, use_cache=False).logits.float().log_softmax(-1).flatten(0, 1)
        p = log_p.exp()
        sums["target_loss"] += functional.nll_loss(log_p, label, reduction="sum").item()
        sums["draft_loss"] += functional.nll_loss(log_q, label, reduction="sum").item()
        sums["target_entropy"] -= (p * log_p).sum().item()
        sums["kl"] += (p * (log_p - log_q)).sum().item()
        sums["overlap"] += torch.minimum(p, log_q.exp()).sum().item()
    count = rows * length
    figures = {name: round(total / count, 4) for name, total in sums.items()}
    figures["loss_gap"] = round(figures["draft_loss"] - figures["target_loss"], 4)
    bytes_a_token = num_bytes / len(tokens.ids)
    bits = figures["target_loss"] / math.log(2) / bytes_a_token
    figures |= {"bytes_a_token": round(bytes_a_token, 3), "target_bits_per_byte": round(bits, 4)}
    return figures | {"num_tokens": count}


@dataclass
class Rounds:
    """Sums over all rounds of a run of the token rule."""

    num_rounds: int
    num_emitted: int
    reached: list[int]
    accepted: list[int]
    product: list[float]

    def figures(self) -> dict[str, float | int | list[float]]:
        """Acceptance length, counted and by closed form, and acceptance by draft position."""
        closed = 1.0 + sum(self.product) / self.num_rounds
        given = [a / max(r, 1) for a, r in zip(self.accepted, self.reached, strict=True)]
        return {
            "num_rounds": self.num_rounds,
            "num_emitted_tokens": self.num_emitted,
            "acceptance_length": round(self.num_emitted / self.num_rounds, 4),
            "acceptance_length_closed_form": round(closed, 4),
            "acceptance_given_reached": [round(value, 4) for value in given],
            "acceptance_of_rounds": [round(a / self.num_rounds, 4) for a in self.accepted],
        }


def last_rows(
    model: LlamaForCausalLM, ids: torch.Tensor, lengths: torch.Tensor, count: int
) -> torch.Tensor:
    """Softmax of the last `count` rows of each right-padded sequence, float64 [B, count, V]."""
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    index = lengths[:, None] - count + torch.arange(count, device=ids.device)
    picked = hidden[torch.arange(len(ids), device=ids.device)[:, None], index]
    return model.lm_head(picked).double().softmax(-1)


def one_round(
    target: LlamaForCausalLM,
    draft: LlamaForCausalLM,
    ids: torch.Tensor,
    lengths: torch.Tensor,
    num_drafts: int,
    generator: torch.Generator,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One round for every row by rule `token` (Leviathan et al. 2023, algorithm 1).

    Writes drafts and the final token into `ids`.

    Returns:
        Accepted drafts int64 [B], and the products of accept probabilities float64 [B, K].
    """
    rows = torch.arange(len(ids), device=ids.device)
    qs = []
    for step in range(num_drafts):
        q = last_rows(draft, ids[:, : int(lengths.max()) + step], lengths + step, 1)[:, 0]
        ids[rows, lengths + step] = torch.multinomial(q, 1, generator=generator)[:, 0]
        qs.append(q)
    q = torch.stack(qs, 1)
    p = last_rows(
        target, ids[:, : int(lengths.max()) + num_drafts], lengths + num_drafts, num_drafts + 1
    )
    drafted = ids[rows[:, None], lengths[:, None] + torch.arange(num_drafts, device=ids.device)]
    ratio = (p[:, :-1].gather(2, drafted[..., None]) / q.gather(2, drafted[..., None]))[..., 0]
    uniform = torch.rand(ratio.shape, generator=generator, device=ids.device, dtype=torch.float64)
    accepted = (uniform < ratio).long().cumprod(1).sum(1)
    q_next = torch.cat([q, torch.zeros_like(q[:, :1])], 1)[rows, accepted]
    residual = (p[rows, accepted] - q_next).clamp(min=0.0)
    ids[rows, lengths + accepted] = torch.multinomial(residual, 1, generator=generator)[:, 0]
    return accepted, ratio.clamp(max=1.0).cumprod(1)


@torch.no_grad()
def run_token_rule(
    target: LlamaForCausalLM,
    draft: LlamaForCausalLM,
    prompts: list[list[int]],
    *,
    num_drafts: int = 4,
    max_new_tokens: int = 128,
    seed: int = 0,
) -> tuple[Rounds, list[list[int]]]:
    """Runs speculative sampling at temperature 1 without a cache and counts.

    A row stops at its end token or after `max_new_tokens`; a round that emits the end token is
    not counted, so that nothing after the end of a text enters the figures.

    Returns:
        The counts and the texts as ids.
    """
    device = next(target.parameters()).device
    generator = torch.Generator(device=device).manual_seed(seed)
    eos = target.config.eos_token_id
    width = max(map(len, prompts)) + max_new_tokens + num_drafts + 1
    ids = torch.full((len(prompts), width), eos, device=device)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = torch.tensor(prompt, device=device)
    begin = torch.tensor([len(prompt) for prompt in prompts], device=device)
    lengths, alive = begin.clone(), torch.ones(len(prompts), dtype=torch.bool, device=device)
    counts = Rounds(0, 0, [0] * num_drafts, [0] * num_drafts, [0.0] * num_drafts)
    while alive.any():
        live = alive.nonzero()[:, 0]
        part, size = ids[live], lengths[live]
        accepted, product = one_round(target, draft, part, size, num_drafts, generator)
        ids[live] = part
        span = size[:, None] + torch.arange(num_drafts + 1, device=device)
        emitted = part.gather(1, span)
        real = torch.arange(num_drafts + 1, device=device) <= accepted[:, None]
        ended = (emitted == eos) & real
        num = torch.where(ended.any(1), ended.long().argmax(1) + 1, accepted + 1)
        whole = ~ended.any(1)
        counts.num_rounds += int(whole.sum())
        counts.num_emitted += int(num[whole].sum())
        for i in range(num_drafts):
            counts.reached[i] += int((accepted[whole] >= i).sum())
            counts.accepted[i] += int((accepted[whole] > i).sum())
            counts.product[i] += product[whole, i].sum().item()
        lengths[live] = size + num
        alive[live] = whole & (lengths[live] - begin[live] < max_new_tokens)
    texts = [ids[r, begin[r] : lengths[r]].tolist() for r in range(len(prompts))]
    return counts, texts


def held_out_prompts(tokens: Tokens, count: int, length: int) -> list[list[int]]:
    """The first `length` ids of `count` held-out documents, evenly spread."""
    step = max(1, tokens.num_documents // count)
    documents = [tokens.document(i) for i in range(0, tokens.num_documents, step)]
    return [d[:length] for d in documents if len(d) > length][:count]


def as_text(
    tokenizer: PreTrainedTokenizerFast, prompt: list[int], text: list[int]
) -> dict[str, str]:
    """A sample as text: the prompt and its continuation."""
    kept = [i for i in text if i != tokenizer.eos_token_id]
    return {"prompt": tokenizer.decode(prompt), "text": tokenizer.decode(kept)}
