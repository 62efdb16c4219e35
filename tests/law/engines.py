"""Engines whose target's law is known exactly: table models, and the pocket pair on a few ids.

Axes: A allowed ids, B rows, Q tokens forwarded a row, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairdraft import SamplingParams, pocket
from fairdraft.models import CausalLM, load_model
from tests.law.faulty_laws import coupled
from tests.law.tables import P4, Q4, log, markov, softmax

#: target and draft of the toy pair, each [4, 4] by the last token
TABLES = markov(4, 1, P4, Q4)


class NarrowLM(CausalLM):
    """A model that gives every id but a few -inf; everything else is the model.

    Attributes:
        allowed: The ids that are left, ascending.
    """

    def __init__(self, base: CausalLM, allowed: Sequence[int]) -> None:
        self.__dict__.update(base.__dict__)
        self.allowed = torch.tensor(sorted(allowed))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The base model's logits, masked, and its hidden states if they are asked for."""
        result = super().forward(*args, **kwargs)
        logits = result[0] if isinstance(result, tuple) else result
        kept = self._narrowed(logits)
        return (kept, result[1]) if isinstance(result, tuple) else kept

    def step(self, *args: Any, **kwargs: Any) -> Tensor:
        """The base model's logits of one token a row, masked."""
        return self._narrowed(super().step(*args, **kwargs))

    def _narrowed(self, logits: Tensor) -> Tensor:
        kept = torch.full_like(logits, -torch.inf)
        kept[..., self.allowed] = logits[..., self.allowed]
        return kept


class TokenCache:
    """Remembers the tokens of each row in place of keys and values."""

    def __init__(self, max_rows: int, length: int) -> None:
        self.token_ids = np.zeros((max_rows, length), np.int64)

    def reserve(self, num_rows: int, length: int) -> None:
        """All rows are there from the start."""
        assert num_rows <= len(self.token_ids) and length <= self.token_ids.shape[1]

    def move_row(self, source: int, destination: int) -> None:
        self.token_ids[destination] = self.token_ids[source]

    def drop_row(self, row: int) -> None:
        self.token_ids[row] = -1


class RecallLM(NarrowLM):
    """A narrow model whose logits after one prompt are looked up by prefix.

    Attributes:
        prompt: The only prompt it knows.
        table: Logits of the allowed ids after every prefix of at most `depth` of them
            [1 + A + ... + A^depth, A]; shorter prefixes first, then in order of digits.
        first: Index of the first prefix of each length.
    """

    def __init__(
        self, base: CausalLM, allowed: Sequence[int], prompt: Sequence[int], depth: int
    ) -> None:
        super().__init__(base, allowed)
        self.prompt = list(prompt)
        size = len(self.allowed)
        self.first = np.cumsum([0, *(size**d for d in range(depth))])
        self.table = torch.cat([self._level(d) for d in range(depth + 1)])
        self.code = np.zeros(self.padded_vocab_size, np.int64)
        self.code[self.allowed.numpy()] = np.arange(size)

    def new_cache(self, num_rows: int = 1, length: int = 64) -> Any:
        """A cache of tokens."""
        return TokenCache(64, len(self.prompt) + len(self.first) + 16)

    def forward(
        self,
        token_ids: Tensor,
        start: Tensor | np.ndarray,
        cache: Any,
        *,
        num_tokens: Tensor | np.ndarray | None = None,
        first_row: int = 0,
        last_only: bool = False,
        **options: Any,
    ) -> Any:
        """Looks the rows up; positions before the end of the prompt mean nothing."""
        width = token_ids.shape[1]
        given = width if num_tokens is None else np.asarray(num_tokens)
        counts = np.full(len(token_ids), given)
        rows = first_row + np.arange(len(token_ids))[:, None]
        positions = np.asarray(start)[:, None] + np.arange(width)
        is_real = np.arange(width) < counts[:, None]
        row, column = np.nonzero(is_real)
        cache.token_ids[first_row + row, positions[row, column]] = token_ids.numpy()[row, column]
        length = positions - len(self.prompt) + 1
        index = np.zeros_like(positions)
        for depth in range(1, len(self.first)):
            at = np.minimum(len(self.prompt) + depth - 1, cache.token_ids.shape[1] - 1)
            digit = self.code[cache.token_ids[rows, at].clip(0)]
            index = np.where(depth <= length, index * len(self.allowed) + digit, index)
        depth = len(self.first) - 1
        assert length[is_real].max(initial=0) <= depth, "a prefix longer than what was computed"
        is_known = is_real & (length >= 0)
        index = np.where(is_known, self.first[length.clip(0, depth)] + index, 0)
        logits = torch.full((*index.shape, self.padded_vocab_size), -torch.inf)
        logits[..., self.allowed] = self.table[torch.from_numpy(index)]
        if last_only:
            logits = logits[torch.arange(len(logits)), torch.from_numpy(counts - 1).clamp(min=0)]
        return logits

    def step(self, token_ids: Tensor, start: np.ndarray, cache: Any) -> Any:
        """One token a row."""
        return self.forward(token_ids, start, cache, last_only=True)

    def law(self, prefix: Sequence[int], params: SamplingParams) -> np.ndarray:
        """Exact law over the allowed ids after `prefix`, given as indices of allowed ids."""
        index = 0
        for digit in prefix:
            index = index * len(self.allowed) + digit
        return processed(self.table[self.first[len(prefix)] + index].numpy(), params)

    @torch.inference_mode()
    def _level(self, depth: int) -> Tensor:
        """Logits after every prefix of one length, in one batch."""
        tails = itertools.product(self.allowed.tolist(), repeat=depth)
        ids = torch.tensor([[*self.prompt, *tail] for tail in tails])
        network: Any = self.model
        blocks = [
            network(input_ids=block, use_cache=False, logits_to_keep=1).logits[:, -1].float()
            for block in ids.split(256)
        ]
        return torch.cat(blocks)[:, self.allowed]


def processed(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """Law of a row after temperature, top-k, top-p and min-p, in float64 and in this order."""
    temperature = params.temperature
    law = softmax(logits, temperature)
    if temperature == 0:
        return law
    if params.top_k:
        law = np.where(law >= np.sort(law)[-min(params.top_k, len(law))], law, 0.0)
    if params.top_p < 1:
        order = np.argsort(-law, kind="stable")
        before = np.cumsum(law[order]) - law[order]
        law[order[before >= params.top_p * law.sum()]] = 0.0
    if params.min_p:
        law = np.where(law >= params.min_p * law.max(), law, 0.0)
    return law / law.sum()


def toy_law(h: tuple[int, ...], params: SamplingParams) -> np.ndarray:
    """The toy target's law after a history, under a request's parameters."""
    return processed(log(TABLES[0])[h[-1] if h else 0].astype(np.float64), params)


def first_tokens(outputs: Iterable[Any], length: int) -> np.ndarray:
    """First `length` tokens of every sample of every request [N, length]."""
    for output in outputs:
        assert output.error is None
    return np.array([s.token_ids[:length] for output in outputs for s in output.outputs])


def adversarial_ids(
    target: CausalLM, draft: CausalLM, prompt: Sequence[int], size: int
) -> list[int]:
    """Ids on which target and draft disagree most usefully, after the prompt and one token more.

    Of sets drawn from the ids that are likely in both places, the one whose first two tokens shared
    noise would bias most.
    """
    models = (target, draft)
    root = [softmax(_last_logits(model, [list(prompt)])[0]) for model in models]
    first = np.argsort(-np.minimum(*root))[:40]
    after = [softmax(_last_logits(m, [[*prompt, int(x)] for x in first])) for m in models]
    pool = np.argsort(-np.minimum(*root)[first] * np.minimum(*after).mean(0)[first])[:20]
    generator = np.random.default_rng(0)
    sets = [np.sort(generator.choice(pool, size, replace=False)) for _ in range(600)]

    def bias(chosen: np.ndarray) -> float:
        ids = first[chosen]
        p, q = (row[ids] / row[ids].sum() for row in root)
        later = [bias_of(*(rows[k][ids] / rows[k][ids].sum() for rows in after)) for k in chosen]
        return bias_of(p, q) + float(p @ later)

    return sorted(first[max(sets, key=bias)].tolist())


def bias_of(p: np.ndarray, q: np.ndarray) -> float:
    """Total variation that shared noise causes."""
    return 0.5 * float(np.abs(coupled(p, q) - p).sum())


@torch.inference_mode()
def _last_logits(model: CausalLM, texts: list[list[int]]) -> np.ndarray:
    """Logits after each text [N, V], all texts of one length; the end of text is left out."""
    network: Any = model.model
    logits = network(input_ids=torch.tensor(texts), use_cache=False, logits_to_keep=1).logits
    rows = logits[:, -1].double().numpy()
    rows[:, list(model.eos_token_ids)] = -np.inf
    return rows


def pocket_pair() -> tuple[CausalLM, CausalLM]:
    """The embedded target and draft."""
    return (
        load_model(pocket.path("target")),
        load_model(pocket.path("draft"), role="draft"),
    )
