"""Training of the target: next-token loss, AdamW, a schedule bounded by steps and by the clock."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional
from transformers import LlamaForCausalLM

from train.pocket.data import Tokens, window_batch


@dataclass(frozen=True)
class Budget:
    """How long and how wide a training runs; it ends at `steps` or at `seconds`."""

    seconds: float
    steps: int
    batch: int
    length: int
    learning_rate: float
    warmup: float = 0.02
    cooldown: float = 0.5
    weight_decay: float = 0.1
    seed: int = 1


@dataclass
class Curve:
    """Loss curve of one training: (step, seconds, training loss, held-out loss or nan)."""

    name: str
    points: list[tuple[int, float, float, float]] = field(default_factory=list)


def learning_rate(budget: Budget, progress: float) -> float:
    """Trapezoid: a linear warm-up, a plateau, and a linear cool-down to zero."""
    up = progress / budget.warmup if budget.warmup else 1.0
    down = (1.0 - progress) / budget.cooldown
    return budget.learning_rate * max(0.0, min(1.0, up, down))


def make_optimizer(model: nn.Module, budget: Budget) -> torch.optim.AdamW:
    """AdamW that decays matrices only."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": budget.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    fused = next(model.parameters()).is_cuda
    return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), fused=fused)


def autocast(device: str) -> torch.autocast:
    """bf16 matrix products on a GPU; plain fp32 on a CPU."""
    return torch.autocast(torch.device(device).type, torch.bfloat16, enabled="cuda" in device)


def fit(
    model: nn.Module,
    loss_of: Callable[[torch.Tensor], torch.Tensor],
    tokens: Tokens,
    budget: Budget,
    curve: Curve,
    held_out_loss: Callable[[], float],
    *,
    points: int = 20,
) -> None:
    """Minimises `loss_of(window)` over random windows within the budget.

    Args:
        model: The module whose parameters are trained, in place.
        loss_of: Maps windows int64 [batch, length + 1] to a scalar loss.
        tokens: Training documents, on the model's device.
        budget: Steps, seconds, batch and learning rate.
        curve: Receives about `points` measurements.
        held_out_loss: Evaluates the model as it stands.
        points: How often to measure.
    """
    device = tokens.ids.device
    generator = torch.Generator(device=device).manual_seed(budget.seed)
    optimizer = make_optimizer(model, budget)
    begin, step, progress, next_point = time.monotonic(), 0, 0.0, 0.0
    recent: list[torch.Tensor] = []
    while progress < 1.0:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(budget, progress)
        window = window_batch(tokens, budget.batch, budget.length, generator)
        loss = loss_of(window)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        recent.append(loss.detach())
        step += 1
        if step == 3:
            # compilation happens in the first steps and must not eat the warm-up
            begin = time.monotonic()
        if step % 4 == 0 and device.type == "cuda":
            torch.cuda.synchronize()
        elapsed = time.monotonic() - begin
        progress = max(step / budget.steps, elapsed / budget.seconds)
        if progress >= next_point or progress >= 1.0:
            train_loss = torch.stack(recent).mean().item()
            assert math.isfinite(train_loss), f"{curve.name}: loss is {train_loss} at step {step}"
            other_loss = held_out_loss()
            curve.points.append(
                (step, round(elapsed, 1), round(train_loss, 4), round(other_loss, 4))
            )
            print(f"{curve.name}: {elapsed:.0f} s, step {step}, {train_loss:.4f}, {other_loss:.4f}")
            recent.clear()
            next_point += 1.0 / points


def compile_layers(model: LlamaForCausalLM) -> None:
    """Compiles the decoder layers; they share one compiled body."""
    torch._dynamo.config.recompile_limit = 64
    for layer in model.model.layers:
        layer.compile(dynamic=False)


def hidden_states(model: LlamaForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    """The last hidden states [B, L, H] of token ids [B, L]."""
    with autocast(str(ids.device)):
        return model.model(input_ids=ids, use_cache=False).last_hidden_state


def next_token_loss(
    hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """Mean cross-entropy of labels [N] under the tied head applied to hidden [N, H]."""
    with autocast(str(hidden.device)):
        logits = functional.linear(hidden, weight)
    return functional.cross_entropy(logits.float(), labels)


def train_target(
    model: LlamaForCausalLM,
    tokens: Tokens,
    held_out: Tokens,
    budget: Budget,
    *,
    name: str = "target",
    compiled: bool = False,
) -> Curve:
    """Trains the target on next tokens; returns its loss curve."""
    loss = torch.compile(next_token_loss, dynamic=False) if compiled else next_token_loss
    if compiled:
        compile_layers(model)

    def loss_of(window: torch.Tensor) -> torch.Tensor:
        hidden = hidden_states(model, window[:, :-1]).flatten(0, 1)
        return loss(hidden, model.lm_head.weight, window[:, 1:].flatten())

    curve = Curve(name)
    model.train()
    fit(model, loss_of, tokens, budget, curve, quick_loss(model, held_out, budget))
    model.eval()
    return curve


def quick_loss(model: LlamaForCausalLM, tokens: Tokens, budget: Budget) -> Callable[[], float]:
    """A quick held-out loss on one fixed batch of windows, nats a token."""
    device = tokens.ids.device
    generator = torch.Generator(device=device).manual_seed(0)
    window = window_batch(tokens, budget.batch, budget.length, generator)

    @torch.no_grad()
    def measure() -> float:
        hidden = hidden_states(model, window[:, :-1]).flatten(0, 1)
        return next_token_loss(hidden, model.lm_head.weight, window[:, 1:].flatten()).item()

    return measure
