"""The teacher, SmolLM2-135M-Instruct, as one decode step over a static cache.

Every row of the batch works on its own prompt at its own position: prompt tokens are fed one
by one through the same step, and a row whose text has ended takes the next prompt from a queue
on the device. So a whole run is one captured step, replayed.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from fairdraft.models import smollm2
from train.pocket import attention


def load_teacher(file: Path | None, dtype: torch.dtype) -> tuple[PreTrainedModel, object]:
    """Loads the teacher from a GGUF file, or the installed package's; also its tokenizer."""
    folder = smollm2.path(file)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    return model.eval(), AutoTokenizer.from_pretrained(folder)


@dataclass(frozen=True)
class Sampling:
    """How the teacher draws: softmax at `temperature` over tokens of at least `min_p` * max.

    Logits of tokens that the text already holds are scaled by `penalty` towards less likely.
    """

    temperature: float = 0.7
    min_p: float = 0.1
    penalty: float = 1.1


class Decoder:
    """Static-cache decoder of a Llama; state and queue live on the device.

    Args:
        model: A transformers Llama; its weights are used as they are.
        prompts: int64 [Q, P], right-padded prompt ids.
        prompt_lengths: int64 [Q].
        batch: Rows that decode at the same time.
        length: Slots a row; a text that reaches the last slot is cut.
        max_steps: Steps that the history has room for.
        eos: Ids that end a text.
        sampling: Temperature and min-p.
        compiled: Fuse the elementwise parts with torch.compile.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        prompts: torch.Tensor,
        prompt_lengths: torch.Tensor,
        *,
        batch: int,
        length: int,
        max_steps: int,
        eos: list[int],
        sampling: Sampling,
        compiled: bool,
    ) -> None:
        config, device = model.config, model.device
        assert prompts.shape[1] <= length, "a prompt is longer than the cache"
        assert len(prompts) > batch, "fewer prompts than rows"
        self.groups = config.num_key_value_heads
        self.dim = config.hidden_size // config.num_attention_heads
        self.heads = config.num_attention_heads // self.groups
        self.epsilon, self.sampling, self.length = config.rms_norm_eps, sampling, length
        self.layers = [layer_weights(layer) for layer in model.model.layers]
        self.embedding = model.model.embed_tokens.weight.data
        self.norm = model.model.norm.weight.data
        theta = config.rope_parameters["rope_theta"]
        dims = torch.arange(0, self.dim, 2, device=device).float() / self.dim
        angle = torch.arange(length, device=device).float()[:, None] / theta**dims
        self.cos = torch.cat([angle, angle], 1).cos()
        self.sin = torch.cat([angle, angle], 1).sin()
        shape = (len(self.layers), batch, self.groups, length, self.dim)
        self.key = torch.zeros(shape, device=device, dtype=self.embedding.dtype)
        self.value = torch.zeros_like(self.key)
        self.rows = torch.arange(batch, device=device)
        self.prompts, self.prompt_lengths = prompts.to(device), prompt_lengths.to(device)
        self.eos = torch.tensor(eos, device=device)
        self.request = self.rows.clone()
        self.position = torch.zeros_like(self.rows)
        self.token = self.prompts[self.request, 0].clone()
        self.next_request = torch.full((), batch, device=device)
        self.step_index = torch.zeros((), dtype=torch.int64, device=device)
        self.seen = torch.full((batch, len(self.embedding)), -1, device=device, dtype=torch.int32)
        self.history_token = torch.full((max_steps, batch), -1, device=device, dtype=torch.int32)
        self.history_request = torch.full_like(self.history_token, -1)
        fuse = torch.compile(dynamic=False) if compiled else lambda function: function
        self.before, self.after = fuse(self._before), fuse(self._after)
        self.choose = fuse(self._choose)
        on_gpu = device.type == "cuda" and attention.triton is not None
        self.attend = attention.kernel if on_gpu else attention.reference

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)
        return wide.to(x.dtype) * weight

    def _rope(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        left, right = x.chunk(2, -1)
        return (x * cos + torch.cat([-right, left], -1) * sin).to(x.dtype)

    def _before(
        self, x: torch.Tensor, norm: torch.Tensor, qkv: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Norm, projections and rotation: query [B, G, H, D], key and value [B, G, D]."""
        count = self.groups * self.heads
        projected = functional.linear(self._norm(x, norm), qkv).view(len(x), -1, self.dim)
        cos, sin = self.cos[self.position][:, None], self.sin[self.position][:, None]
        turned = self._rope(projected[:, : count + self.groups], cos, sin)
        query = turned[:, :count].reshape(len(x), self.groups, self.heads, self.dim)
        return query.contiguous(), turned[:, count:], projected[:, count + self.groups :]

    def _after(
        self,
        x: torch.Tensor,
        attended: torch.Tensor,
        out: torch.Tensor,
        norm: torch.Tensor,
        gate_up: torch.Tensor,
        down: torch.Tensor,
    ) -> torch.Tensor:
        """Output projection and MLP with their residual connections."""
        x = x + functional.linear(attended.reshape(len(x), -1), out)
        gate, up = functional.linear(self._norm(x, norm), gate_up).chunk(2, -1)
        return x + functional.linear(functional.silu(gate) * up, down)

    def logits(self) -> torch.Tensor:
        """Feeds each row's token at its position; returns logits [B, V]."""
        x = self.embedding[self.token]
        for index, weights in enumerate(self.layers):
            key, value = self.key[index], self.value[index]
            query, new_key, new_value = self.before(x, weights["norm1"], weights["qkv"])
            key[self.rows, :, self.position] = new_key
            value[self.rows, :, self.position] = new_value
            attended = self.attend(query, key, value, self.position)
            names = ("out", "norm2", "gate_up", "down")
            x = self.after(x, attended, *(weights[name] for name in names))
        return functional.linear(self._norm(x, self.norm), self.embedding)

    def _choose(
        self, logits: torch.Tensor, noise: torch.Tensor, seen: torch.Tensor, request: torch.Tensor
    ) -> torch.Tensor:
        """An exponential race over the kept tokens; `noise` is uniform in [0, 1).

        `seen` [B, V] holds the last request of the row that drew a token.
        """
        wide, penalty = logits.float(), self.sampling.penalty
        lowered = torch.where(wide > 0, wide / penalty, wide * penalty)
        wide = torch.where(seen == request[:, None], lowered, wide)
        scaled = wide / self.sampling.temperature
        log_min_p = math.log(self.sampling.min_p) if self.sampling.min_p else -math.inf
        floor = scaled.amax(-1, keepdim=True) + log_min_p
        score = scaled - torch.log(-torch.log1p(-noise) + 1e-20)
        return torch.where(scaled >= floor, score, -torch.inf).argmax(-1)

    def advance(self, drawn: torch.Tensor) -> None:
        """Takes the drawn or the prompt's token, records it, moves rows on, refills ended rows."""
        after = self.position + 1
        forced = after < self.prompt_lengths[self.request]
        column = after.clamp(max=self.prompts.shape[1] - 1)
        token = torch.where(forced, self.prompts[self.request, column], drawn)
        kept = torch.where(forced, -1, token).int()
        self.seen[self.rows, token] = self.request.int()
        self.history_token.index_copy_(0, self.step_index[None], kept[None])
        self.history_request.index_copy_(0, self.step_index[None], self.request.int()[None])
        done = (~forced & (token[:, None] == self.eos).any(1)) | (after >= self.length - 1)
        fresh = self.next_request + done.long().cumsum(0) - 1
        request = torch.where(done, fresh % len(self.prompts), self.request)
        self.next_request.add_(done.sum())
        self.request.copy_(request)
        self.position.copy_(torch.where(done, 0, after))
        self.token.copy_(torch.where(done, self.prompts[request, 0], token))
        self.step_index.add_(1)

    @torch.no_grad()
    def step(self) -> None:
        """One token for every row."""
        logits = self.logits()
        noise = torch.rand(logits.shape, device=logits.device)
        self.advance(self.choose(logits, noise, self.seen, self.request))

    def capture(self) -> torch.cuda.CUDAGraph:
        """Captures one step in a CUDA graph after three warm-up steps."""
        for _ in range(3):
            self.step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        return graph

    def run(self, steps: int, seconds: float, *, report: float = 20.0) -> int:
        """Decodes until `steps`, `seconds` or the end of the queue; returns the tokens fed."""
        on_gpu = self.key.is_cuda
        once = self.capture().replay if on_gpu else self.step
        steps = min(steps, len(self.history_token) - int(self.step_index))
        begin, said = time.monotonic(), 0.0
        done = 0
        while done < steps:
            for _ in range(min(32, steps - done)):
                once()
                done += 1
            used = int(self.next_request)
            elapsed = time.monotonic() - begin
            if elapsed - said > report:
                said = elapsed
                rate = done * len(self.rows) / elapsed
                print(f"teacher: {done} steps, {elapsed:.0f} s, {rate:.0f} tokens/s, prompt {used}")
            if elapsed > seconds or used >= len(self.prompts):
                break
        return done * len(self.rows)

    def texts(self) -> dict[int, list[int]]:
        """Texts by prompt number, in ids without the end token and without the prompt."""
        count = int(self.step_index)
        token = self.history_token[:count].T.reshape(-1)
        request = self.history_request[:count].T.reshape(-1)
        token, request = token[token >= 0], request[token >= 0]
        order = request.argsort(stable=True)
        token, request = token[order].cpu(), request[order]
        numbers, sizes = request.unique_consecutive(return_counts=True)
        ends = set(self.eos.tolist())
        pieces = zip(numbers.tolist(), token.split(sizes.tolist()), strict=True)
        whole = ((number, piece.tolist()) for number, piece in pieces)
        return {number: ids[:-1] if ids[-1] in ends else ids for number, ids in whole}


def layer_weights(layer: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The weights of one layer, projections of one input joined."""
    attn, mlp = layer.self_attn, layer.mlp
    qkv = [attn.q_proj.weight.data, attn.k_proj.weight.data, attn.v_proj.weight.data]
    return {
        "norm1": layer.input_layernorm.weight.data,
        "qkv": torch.cat(qkv),
        "out": attn.o_proj.weight.data,
        "norm2": layer.post_attention_layernorm.weight.data,
        "gate_up": torch.cat([mlp.gate_proj.weight.data, mlp.up_proj.weight.data]),
        "down": mlp.down_proj.weight.data,
    }
