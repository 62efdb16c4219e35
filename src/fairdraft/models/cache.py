"""A key/value cache whose slots are logical positions.

Axes: R rows, H key/value heads, L slots, D head size, B rows of one forward, Q its queries.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Cache

__all__ = ["RaggedCache", "kept_layers"]

_LENGTH_STEP = 16


def kept_layers(outputs: Any) -> Any:
    """Layers of the cache that a network made by itself, each with `keys` and `values`.

    Args:
        outputs: What it returned with `use_cache=True`.
    """
    # renamed in 5.24, where the old name warns
    cache = getattr(outputs, "cache", None)
    return (outputs.past_key_values if cache is None else cache).layers


class RaggedCache(Cache):
    """Holds keys and values of a batch in which every request has its own length.

    Slot j of a row belongs to position j of that row's sequence, so a rollback needs no call:
    the next forward starts at a smaller position, slots past a query are masked, and they are
    overwritten in time. Rows and slots grow by doubling. Memory that was never written is zero,
    because a masked slot still enters the sum with weight 0 and 0 * NaN is NaN.

    Args:
        max_length: Most slots that a row may use: the model's context.
        num_rows: Rows to allocate at first.
        length: Slots to allocate at first.

    Raises:
        ValueError: If a size is below 1.
    """

    def __init__(self, max_length: int, num_rows: int = 1, length: int = 64) -> None:
        for name, value in (("max_length", max_length), ("num_rows", num_rows), ("length", length)):
            if value < 1:
                raise ValueError(f"{name} = {value}: a cache needs at least 1.")
        super().__init__(layers=[])
        self.max_length = max_length
        self.num_rows = num_rows
        self.length = self._round(length)
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}
        self._slots = torch.zeros(0, 0, dtype=torch.int64)
        #: slot of every row's first token, where all rows have one; None where they have not
        self.first_slot: int | None = None
        self._index: dict[int, Tensor] = {}
        #: row of the cache that holds the first row of the batch
        self.first_row = 0
        self._read_length = 0
        #: how often keys and values went to other memory, whose addresses graphs hold
        self.num_moves = 0

    @property
    def is_written(self) -> bool:
        """Whether any keys were ever written; until then no layer has memory to read."""
        return bool(self._keys)

    @property
    def scratch_slot(self) -> int:
        """Where padding past the context is written; no query ever reads it."""
        return self.max_length

    def _round(self, length: int) -> int:
        rounded = -(-length // _LENGTH_STEP) * _LENGTH_STEP
        return min(rounded, self.max_length + 1)

    def begin(
        self, slots: Tensor, first_row: int, read_length: int, first_slot: int | None = None
    ) -> int:
        """Prepares the forward whose layers will call `update`.

        Args:
            slots: int64 [B, Q] on the cache's device, where each key goes; `scratch_slot` for
                padding past the context.
            first_row: Row of the cache that holds the first row of the batch.
            read_length: Slots that the queries need, at most `max_length`.
            first_slot: What every row of `slots` counts up from, if that is so.

        Returns:
            Number of slots L that the attention will see: `read_length`, rounded up.
        """
        assert 0 < read_length <= self.max_length
        highest = read_length + 1 if read_length == self.max_length else read_length
        self.reserve(first_row + slots.shape[0], highest)
        self._slots, self.first_slot = slots, first_slot
        self._index = {}
        self.first_row = first_row
        self._read_length = min(self._round(read_length), self.length, self.max_length)
        return self._read_length

    def reserve(self, num_rows: int, length: int) -> None:
        """Grows to at least this many rows and slots, by doubling; contents stay.

        Args:
            num_rows: Rows wanted.
            length: Slots wanted, at most `max_length` + 1 (the scratch slot).
        """
        if num_rows <= self.num_rows and length <= self.length:
            return
        assert length <= self.max_length + 1
        rows = self.num_rows if num_rows <= self.num_rows else max(num_rows, 2 * self.num_rows)
        slots = self.length
        if length > slots:
            slots = self._round(max(length, 2 * slots))
        grown = [
            {index: _grow(tensor, rows, slots) for index, tensor in store.items()}
            for store in (self._keys, self._values)
        ]
        # all at once, so that an interrupt leaves either the old cache or the new one
        self._keys, self._values, self.num_rows, self.length = *grown, rows, slots
        self.num_moves += 1

    def update(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Writes one layer's keys and values and returns what its queries read.

        Called by the model, between `begin` and the next `begin`.

        Args:
            key_states: [B, H, Q, D].
            value_states: [B, H, Q, D'] (D' may differ from D).
            layer_idx: The layer.
            args: What some models pass on top; unused.
            kwargs: The same.

        Returns:
            Views [B, H, L, D] and [B, H, L, D'] of the cache.
        """
        keys = self._write(self._keys, key_states, layer_idx)
        values = self._write(self._values, value_states, layer_idx)
        rows = slice(self.first_row, self.first_row + key_states.shape[0])
        return keys[rows, :, : self._read_length], values[rows, :, : self._read_length]

    def read(self, layer_idx: int, num_rows: int, read_length: int) -> tuple[Tensor, Tensor]:
        """What one layer wrote, for a reader beside the model; changes nothing.

        Args:
            layer_idx: The layer; something must have been written there.
            num_rows: Rows from the first on.
            read_length: Slots wanted, at most `max_length`.

        Returns:
            Views [B, H, L, D] and [B, H, L, D'], L being `read_length` rounded up.
        """
        assert 0 < read_length <= self.max_length
        length = min(self._round(read_length), self.length, self.max_length)
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        return keys[:num_rows, :, :length], values[:num_rows, :, :length]

    def memory(self, layer_idx: int, num_heads: int, head_dim: int, like: Tensor) -> list[Tensor]:
        """What a layer that needs no `update` reads and writes by itself.

        Args:
            layer_idx: The layer.
            num_heads: H.
            head_dim: D, of keys and of values.
            like: A tensor of their type and device.

        Returns:
            All keys and all values [R, H, S, D], S being the slots allocated.
        """
        stores = (self._keys, self._values)
        return [self._memory(store, layer_idx, num_heads, head_dim, like) for store in stores]

    def _memory(
        self, store: dict[int, Tensor], layer_idx: int, num_heads: int, head_dim: int, like: Tensor
    ) -> Tensor:
        tensor = store.get(layer_idx)
        if tensor is None:
            tensor = like.new_zeros(self.num_rows, num_heads, self.length, head_dim)
            store[layer_idx] = tensor
            self.num_moves += 1
        return tensor

    def _write(self, store: dict[int, Tensor], states: Tensor, layer_idx: int) -> Tensor:
        num_heads, head_dim = states.shape[1], states.shape[3]
        tensor = self._memory(store, layer_idx, num_heads, head_dim, states)
        if self.first_slot is not None:
            num_rows, _, num_queries, _ = states.shape
            rows = slice(self.first_row, self.first_row + num_rows)
            tensor[rows, :, self.first_slot : self.first_slot + num_queries] = states
            return tensor
        tensor.view(-1, head_dim).index_copy_(
            0, self._flat_index(num_heads), states.reshape(-1, head_dim)
        )
        return tensor

    # one flat copy is twice as fast as an indexed assignment over rows and slots
    def _flat_index(self, num_heads: int) -> Tensor:
        index = self._index.get(num_heads)
        if index is None:
            slots, device = self._slots, self._slots.device
            stride = num_heads * self.length
            begin, end = self.first_row * stride, (self.first_row + len(slots)) * stride
            heads = torch.arange(begin, end, self.length, device=device)
            index = (heads.view(len(slots), num_heads, 1) + slots[:, None, :]).flatten()
            self._index[num_heads] = index
        return index

    @torch.inference_mode()
    def move_slots(self, rows: Tensor, sources: Tensor, destinations: Tensor) -> None:
        """Copies keys and values from slot to slot of the same row; all are read before any is set.

        Args:
            rows, sources, destinations: int64 [N].
        """
        if not len(rows):
            return
        for store in (self._keys, self._values):
            for tensor in store.values():
                at = (rows.to(tensor.device), sources.to(tensor.device))
                moved = tensor[at[0], :, at[1]]
                tensor[at[0], :, destinations.to(tensor.device)] = moved

    @torch.inference_mode()
    def move_row(self, source: int, destination: int) -> None:
        """Moves one row onto another and leaves the source empty.

        Args:
            source: Row to move.
            destination: Row that it replaces.

        Raises:
            ValueError: If either row was never allocated.
        """
        self._check_row(source)
        self._check_row(destination)
        if source == destination:
            return
        for store in (self._keys, self._values):
            for tensor in store.values():
                tensor[destination] = tensor[source]
                tensor[source] = 0

    @torch.inference_mode()
    def drop_row(self, row: int) -> None:
        """Empties a row, so that nothing of a finished request (a NaN, say) stays behind.

        Args:
            row: Row to empty.

        Raises:
            ValueError: If the row was never allocated.
        """
        self._check_row(row)
        for store in (self._keys, self._values):
            for tensor in store.values():
                tensor[row] = 0

    def _check_row(self, row: int) -> None:
        if not 0 <= row < self.num_rows:
            raise ValueError(
                f"row {row} is outside the cache; its rows are 0..{self.num_rows - 1}."
            )

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Returns the slots read by the current forward, of whatever row."""
        return self._read_length

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Returns (L, 0): every layer keeps every slot, sliding ones included."""
        return self._read_length, 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """Returns the most slots that a row may use."""
        return self.max_length

    def crop(self, tokens_to_remove: int) -> None:
        """Refuses: rows have lengths of their own, and a smaller start is the rollback."""
        raise NotImplementedError("RaggedCache rolls back by a smaller start, not by crop().")

    def __repr__(self) -> str:
        return f"RaggedCache(num_rows={self.num_rows}, length={self.length})"


def _grow(tensor: Tensor, num_rows: int, length: int) -> Tensor:
    old_rows, num_heads, old_length, head_dim = tensor.shape
    grown = tensor.new_zeros(num_rows, num_heads, length, head_dim)
    grown[:old_rows, :, :old_length] = tensor
    return grown
