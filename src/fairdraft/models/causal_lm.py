"""One interface over every transformers causal LM that keeps its past as keys and values.

Axes: B rows of the batch, Q tokens forwarded a row, V the width of the model's output.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from fairdraft.models.blocks import BlockPlaces, TreeBlock
from fairdraft.models.cache import RaggedCache
from fairdraft.models.direct import DirectLlama, take_last
from fairdraft.models.masks import AttentionKind

__all__ = ["CausalLM"]

_PREFILL_TOKENS = 2048
#: first cache row, starts [B], token counts [B] and hidden states of one block of a prefill
OnBlock = Callable[[int, list[int], list[int], tuple[Tensor, ...]], None]
# up to here a list is searched faster than a tensor
_FEW_TOKENS = 64


class CausalLM:
    """A causal LM that serves a ragged batch: each row at its own length.

    Made by `load_model`, which refuses what cannot work.

    Args:
        model: The network, in evaluation mode.
        tokenizer: Its tokenizer, or None: then only token ids can be prompted.
        name: What messages call it.
        kinds: Reach of each layer type that the model has; one entry means one mask for all.
        max_model_len: Context limit, prompt and output together.
        vocab_size: Ids below it may be emitted; the rest of the output is padding.
        padded_vocab_size: V, the width of the output.
        eos_token_ids: Ids that end a text.

    Attributes:
        dtype: Type of the weights and of the cache.
        device: Where they are.
        direct: Stands in for the network's own forward, if there is one (see `direct`).
        num_packed_layers: Products that run in the packed layout (see `packing`).
        places: Where tokens of a block go, and what they see.
        num_forwards: Calls of the network so far.
        num_forwarded_tokens: Real tokens sent through it so far.
        num_padded_tokens: Padding sent along with them.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Any,
        *,
        name: str,
        kinds: dict[str, AttentionKind],
        max_model_len: int,
        vocab_size: int,
        padded_vocab_size: int,
        eos_token_ids: frozenset[int],
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.name = name
        self.kinds = kinds
        self.max_model_len = max_model_len
        self.vocab_size = vocab_size
        self.padded_vocab_size = padded_vocab_size
        self.eos_token_ids = eos_token_ids
        self.dtype: torch.dtype = model.dtype
        self.device: torch.device = model.device
        self.direct: DirectLlama | None = None
        self.num_packed_layers = 0
        self.reset_counters()
        embeddings: Any = model.get_input_embeddings()
        self._num_ids = int(embeddings.weight.shape[0])
        parameters = inspect.signature(model.forward).parameters
        # renamed in 5.24, where the old name warns
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self._keeps_logits = "logits_to_keep" in parameters
        self.places = BlockPlaces(max_model_len, kinds, self.dtype, self.device)

    @property
    def text_config(self) -> Any:
        """The network's configuration, of a model with several parts that of its text."""
        return self.model.config.get_text_config(decoder=True)

    @property
    def num_parameters(self) -> int:
        """Number of weights; tied ones count once."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def reset_counters(self) -> None:
        """Sets `num_forwards`, `num_forwarded_tokens` and `num_padded_tokens` to 0."""
        self.num_forwards = 0
        self.num_forwarded_tokens = 0
        self.num_padded_tokens = 0

    def new_cache(self, num_rows: int = 1, length: int = 64) -> RaggedCache:
        """Makes an empty cache that fits this model.

        Args:
            num_rows: Rows to allocate at first.
            length: Slots a row to allocate at first, at most `max_model_len`.

        Returns:
            A cache that grows by itself.
        """
        return RaggedCache(self.max_model_len, num_rows, min(length, self.max_model_len))

    def forward(
        self,
        token_ids: Tensor,
        start: Tensor | np.ndarray,
        cache: RaggedCache,
        *,
        num_tokens: Tensor | np.ndarray | None = None,
        first_row: int = 0,
        last_only: bool = False,
        hidden_states: bool = False,
        logits_dtype: torch.dtype | None = torch.float32,
        tree: TreeBlock | None = None,
    ) -> Any:
        """Sends one block of tokens a row through the network, all rows in one pass.

        Row b of the batch is row `first_row` + b of the cache. Its token i has position
        start[b] + i, sees slots 0..start[b] + i (a sliding layer only the last ones), and
        overwrites slot start[b] + i: a smaller start than last time is a rollback. Tokens past
        num_tokens[b] are padding: their ids are ignored, their logits mean nothing and no later
        query sees them.

        Args:
            token_ids: int64 [B, Q].
            start: int64 [B], on the host; tokens already in the cache that stay valid.
            cache: From `new_cache`; changed in place.
            num_tokens: int64 [B], on the host, each 0..Q; None means Q.
            first_row: The cache row of the batch's first row.
            last_only: Whether only each row's last real token is wanted.
            hidden_states: Whether to return the hidden states of every layer as well.
            logits_dtype: Type of the result; None keeps the model's.
            tree: Where the tokens are nodes of a tree: they have its positions and see what is
                above them, and `start` is the slot of the first.

        Returns:
            Logits [B, Q, V], or [B, V] with `last_only`; with `hidden_states` a pair of them
            and the tuple of [B, Q, hidden] that the model reports. They are inference tensors:
            change them in place under `torch.inference_mode` only, or clone them.

        Raises:
            ValueError: If shapes disagree, an id is outside the model's embedding, or a position
                would reach `max_model_len`.
        """
        if not torch.is_inference_mode_enabled():
            with torch.inference_mode():
                return self.forward(
                    token_ids,
                    start,
                    cache,
                    num_tokens=num_tokens,
                    first_row=first_row,
                    last_only=last_only,
                    hidden_states=hidden_states,
                    logits_dtype=logits_dtype,
                    tree=tree,
                )
        starts, counts = self._check_block(token_ids, start, num_tokens)
        num_rows, width = token_ids.shape
        ids = self._pad_with_zeros(token_ids, counts)
        begin = self.places.begin if hidden_states else self.places.begin_short
        positions, mask = begin(starts, width, first_row, cache, tree)
        last = None
        if last_only and width > 1:
            last = [max(n - 1, 0) for n in counts or [width] * num_rows]
        if self.direct is None:
            logits, states = self._call(ids, positions, mask, cache, last, hidden_states)
        else:
            logits, states = self.direct(
                ids,
                positions,
                mask,
                cache,
                last=last,
                keep_hidden_states=hidden_states,
            )
        self.num_forwards += 1
        num_real = num_rows * width if counts is None else sum(counts)
        self.num_forwarded_tokens += num_real
        self.num_padded_tokens += num_rows * width - num_real
        if last_only:
            logits = logits.squeeze(1)
        if logits_dtype is not None and logits.dtype is not logits_dtype:
            logits = logits.to(logits_dtype)
        return (logits, states) if hidden_states else logits

    def step(self, token_ids: Tensor, start: np.ndarray, cache: RaggedCache) -> Tensor:
        """`forward` of one token a row, of which the caller knows that all is legal.

        Args:
            token_ids: int64 [B, 1], on the device; ids of the embedding.
            start: int64 [B], each below `max_model_len`.
            cache: From `new_cache`; changed in place.

        Returns:
            float32 logits [B, V].
        """
        if not torch.is_inference_mode_enabled():
            with torch.inference_mode():
                return self.step(token_ids, start, cache)
        positions, mask = self.places.begin_short(start.tolist(), 1, 0, cache)
        run = self._call if self.direct is None else self.direct
        logits = run(token_ids, positions, mask, cache)[0].squeeze(1)
        self.num_forwards += 1
        self.num_forwarded_tokens += len(token_ids)
        return logits if logits.dtype is torch.float32 else logits.float()

    def prefill(
        self,
        token_ids: Sequence[Sequence[int]],
        cache: RaggedCache,
        *,
        first_row: int = 0,
        start: Sequence[int] | None = None,
        on_block: OnBlock | None = None,
    ) -> None:
        """Fills cache rows with texts of different lengths, without logits.

        Long texts go in chunks; a chunk spans the rows that still have tokens, so put the
        longest first when it matters.

        Args:
            token_ids: One sequence of ids a row; an empty one leaves its row alone.
            cache: Changed in place.
            first_row: The cache row of the first sequence.
            start: Position of each sequence's first token; None means 0.
            on_block: Called with the hidden states of each block, as `forward` reports them.

        Raises:
            ValueError: As `forward`.
        """
        starts = [0] * len(token_ids) if start is None else list(start)
        done = [0] * len(token_ids)
        while True:
            left = [len(ids) - n for ids, n in zip(token_ids, done, strict=True)]
            rows = [b for b, n in enumerate(left) if n > 0]
            if not rows:
                return
            span = range(rows[0], rows[-1] + 1)
            width = min(max(left), max(1, _PREFILL_TOKENS // len(span)))
            block = torch.zeros(len(span), width, dtype=torch.int64)
            counts = [min(left[b], width) for b in span]
            for i, b in enumerate(span):
                ids = list(token_ids[b][done[b] : done[b] + counts[i]])
                block[i, : counts[i]] = torch.tensor(ids, dtype=torch.int64)
            begins = [starts[b] + done[b] for b in span]
            result = self.forward(
                block,
                torch.tensor(begins),
                cache,
                num_tokens=torch.tensor(counts),
                first_row=first_row + span.start,
                last_only=True,
                hidden_states=on_block is not None,
            )
            if on_block is not None:
                on_block(first_row + span.start, begins, counts, result[1])
            for i, b in enumerate(span):
                done[b] += counts[i]

    def _check_block(
        self,
        token_ids: Tensor,
        start: Tensor | np.ndarray,
        num_tokens: Tensor | np.ndarray | None,
    ) -> tuple[list[int], list[int] | None]:
        if token_ids.dim() != 2 or token_ids.numel() == 0:
            shape = tuple(token_ids.shape)
            raise ValueError(f"token_ids has shape {shape}; pass [B, Q] with B and Q at least 1.")
        num_rows, width = token_ids.shape
        starts: list[int] = start.tolist()
        counts: list[int] | None = None if num_tokens is None else num_tokens.tolist()
        for name, values in (("start", starts), ("num_tokens", counts)):
            if values is not None and len(values) != num_rows:
                raise ValueError(f"{name} has {len(values)} entries for {num_rows} rows.")
        ends = [s + width for s in starts]
        if counts is not None:
            if min(counts) < 0 or max(counts) > width:
                raise ValueError(
                    f"num_tokens = {counts}: each must be 0..{width}, the block's width."
                )
            if counts == [width] * num_rows:
                counts = None
            else:
                ends = [s + n for s, n in zip(starts, counts, strict=True)]
        if min(starts) < 0 or max(ends) > self.max_model_len:
            row = next(b for b in range(num_rows) if starts[b] < 0 or ends[b] > self.max_model_len)
            raise ValueError(
                f"row {row} would use positions {starts[row]}..{ends[row] - 1} of {self.name!r}, "
                f"whose context is 0..{self.max_model_len - 1}; send fewer tokens."
            )
        return starts, counts

    def _pad_with_zeros(self, token_ids: Tensor, counts: list[int] | None) -> Tensor:
        if counts is not None:
            real = torch.arange(token_ids.shape[1]) < torch.tensor(counts)[:, None]
            token_ids = token_ids.masked_fill(~real.to(token_ids.device), 0)
        if token_ids.is_cpu and token_ids.numel() <= _FEW_TOKENS:
            few = token_ids.flatten().tolist()
            lowest, highest = min(few), max(few)
        else:
            lowest, highest = (bound.item() for bound in token_ids.aminmax())
        if lowest < 0 or highest >= self._num_ids:
            bad = lowest if lowest < 0 else highest
            raise ValueError(
                f"token id {bad} is unknown to {self.name!r}; its ids are 0..{self._num_ids - 1}."
            )
        return token_ids if token_ids.device == self.device else token_ids.to(self.device)

    def call(
        self,
        token_ids: Tensor,
        positions: Tensor,
        mask: Any,
        cache: RaggedCache,
        *,
        keep_last: bool = False,
        hidden_states: bool = False,
    ) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        """Runs the network on a block that is ready: no check, no copy from the host.

        Args:
            token_ids: int64 [B, Q], on the device.
            positions: int64 [B, Q], on the device.
            mask: One additive mask [B, 1, Q, L], or one a layer type.
            cache: Begun for this block.
            keep_last: Whether the last query's logits are enough.
            hidden_states: Whether to return the hidden states of every layer.

        Returns:
            Logits [B, Q, V], or [B, 1, V] where only the last were computed, and the hidden states
            as the model reports them, or None.
        """
        last = None
        if keep_last and self._keeps_logits:
            last = [token_ids.shape[1] - 1] * token_ids.shape[0]
        return self._call(token_ids, positions, mask, cache, last, hidden_states)

    def _call(
        self,
        token_ids: Tensor,
        positions: Tensor | None,
        mask: Any,
        cache: RaggedCache,
        last: list[int] | None = None,
        hidden_states: bool = False,
    ) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        arguments: dict[str, Any] = {self._cache_argument: cache}
        if hidden_states:
            arguments["output_hidden_states"] = True
        handle = None
        if last is not None and self._keeps_logits and min(last) == token_ids.shape[1] - 1:
            arguments["logits_to_keep"] = 1
        elif last is not None and (head := self.model.get_output_embeddings()) is not None:
            handle = head.register_forward_pre_hook(_gather_last(token_ids.shape, last))
        try:
            outputs = self.model(
                input_ids=token_ids,
                attention_mask=mask,
                position_ids=positions,
                use_cache=True,
                **arguments,
            )
        finally:
            if handle is not None:
                handle.remove()
        logits: Tensor = outputs.logits
        if last is not None and logits.shape[1] > 1:
            logits = take_last(logits, last)
        return logits, outputs.hidden_states if hidden_states else None


# the head then runs on one token a row, and whatever the model does after it still happens
def _gather_last(shape: torch.Size, last: list[int]) -> Any:
    def hook(module: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        hidden = inputs[0]
        if hidden.shape[:2] != shape:
            return None
        return (take_last(hidden, last), *inputs[1:])

    return hook
