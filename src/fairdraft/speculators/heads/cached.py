"""A head over a ragged batch, with keys and values of its own.

Axes: B rows, Q slots, H width of the head, V target ids.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fairdraft.models import RaggedCache
from fairdraft.models.attention import attend
from fairdraft.models.blocks import BlockPlaces, TreeBlock
from fairdraft.models.masks import AttentionKind, additive_mask
from fairdraft.models.packing import can_pack
from fairdraft.speculators.heads.fused import Computed, Fused, fused
from fairdraft.speculators.heads.head import Head, SlotHead

_NO_SLOT = 1 << 40
_FULL = AttentionKind("full")
_KINDS = {"full_attention": _FULL}


class CachedNetwork:
    """A head and the keys and values of its rows; rollback is a smaller start.

    Args:
        head: Joined to its target, in evaluation mode; its weights must not change after.
        network: What computes it: the head, or the same in fewer calls.
        num_slots: Slots that a row may use: the head's context.
        num_spare: Slots past the context that blocks may reach into.

    Attributes:
        num_slots: As given.
        cache: Its keys and values.
        caches: The same, for whoever moves rows.
    """

    def __init__(
        self, head: Head, network: Computed, num_slots: int, *, num_spare: int = 0
    ) -> None:
        self.head = head
        self.num_slots = num_slots
        weight = head.first_weight
        self.device, self.dtype = weight.device, weight.dtype
        self._num_spare = num_spare
        self.cache = RaggedCache(num_slots + num_spare)
        self.caches = (self.cache,)
        self._network = network
        self._angles = (torch.empty(0), torch.empty(0))
        self._num_tables = 0

    @property
    def num_moves(self) -> int:
        """How often what rounds read or write went to other memory, whose addresses graphs hold."""
        return self.cache.num_moves + self._num_tables

    def reserve(self, num_rows: int, read_length: int) -> None:
        """Makes room for rounds on the device, of so many rows that read so many slots."""
        length = self._length_on_device(read_length)
        # one slot more: padding past the context goes there
        self.cache.reserve(num_rows, length + 1)
        self._reserve_angles(length)

    def _begin_on_device(self, start: Tensor, width: int, read_length: int) -> tuple[Tensor, int]:
        """Begins a forward without a look at any value.

        Args:
            start: First slot of each row, int64 [B] on the device; where it is negative, slots
                before the text are kept nowhere.
            width: Q.
            read_length: Slots that a round reads, see `DeviceState`.

        Returns:
            Legal positions of the slots [B, Q], and the number of slots that attention reads.
        """
        slots = start[:, None] + torch.arange(width, device=start.device)
        # negative ones wrap to large ones, and those go to the slot reserved behind what is read
        length = self._length_on_device(read_length)
        written = (slots % _NO_SLOT).clamp(max=length)
        length = self.cache.begin(written, 0, length)
        return slots.clamp(0, self.cache.max_length - 1), length

    def _length_on_device(self, read_length: int) -> int:
        return min(read_length + self._num_spare, self.cache.max_length)

    def fuse(self, states: tuple[Tensor, ...]) -> Tensor:
        """Makes one vector a position of the target's states, as `Head.fuse`."""
        return self._network.fuse(states)

    def logits(self, hidden: Tensor, module: int = 0) -> Tensor:
        """Logits over the draft ids from outputs, as `Head.logits`."""
        return self._network.logits(hidden, module)

    def _embed(self, token_ids: Tensor) -> Tensor:
        assert self.head.embed_tokens is not None
        return self.head.embed_tokens(token_ids.to(self.device))

    def _rotations(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        self._reserve_angles(self.cache.get_seq_length())
        cos, sin = self._angles
        return cos[positions][:, None], sin[positions][:, None]

    def _reserve_angles(self, needed: int) -> None:
        if needed > len(self._angles[0]):
            size = min(max(needed, 2 * len(self._angles[0]), 256), self.cache.max_length)
            cos, sin = self.head.angles(torch.arange(size, device=self.device)[None])
            self._angles = cos[0, 0], sin[0, 0]
            self._num_tables += 1


class CachedHead(CachedNetwork):
    """A head of slots: runs blocks of them, each row at its own position.

    Args:
        head, num_slots: As in `CachedNetwork`.
    """

    _network: Fused | SlotHead

    def __init__(self, head: SlotHead, num_slots: int) -> None:
        network = fused(head) if can_pack(head) else head
        super().__init__(head, network, num_slots)
        self._places = BlockPlaces(num_slots, _KINDS, self.dtype, self.device)

    def forward(
        self,
        token_ids: Tensor,
        hidden: Tensor,
        start: np.ndarray,
        num_tokens: np.ndarray | None = None,
        first_row: int = 0,
        module: int = 0,
        tree: TreeBlock | None = None,
    ) -> Tensor:
        """Runs one block of slots a row and keeps their keys and values.

        Args:
            token_ids: int64 [B, Q]; padding may hold any id of the embedding.
            hidden: [B, Q, H].
            start: First slot of each row [B], 0 to `num_slots`.
            num_tokens: Slots of each row [B], 0 to Q; None for Q. None may end past `num_slots`.
            first_row: Row of the cache that the first row of the block is.
            module: Module whose slots they are.
            tree: Where the slots are nodes of a tree, below slots that stand for decided tokens.

        Returns:
            [B, Q, H]; padding holds anything.
        """
        width = token_ids.shape[1]
        counts = np.full(len(start), width) if num_tokens is None else num_tokens
        assert (start >= 0).all() and (start + counts <= self.num_slots).all()
        positions, mask = self._places.begin(start.tolist(), width, first_row, self.cache, tree)

        return self._step(token_ids, hidden, positions, mask, module)

    def forward_on_device(
        self,
        token_ids: Tensor,
        hidden: Tensor,
        start: Tensor,
        *,
        read_length: int,
        module: int = 0,
    ) -> Tensor:
        """Runs one block of slots a row, without a look at any value and without a check.

        A slot outside the context is kept where nobody reads, and its output means nothing.

        Args:
            token_ids, hidden, module: As in `forward`, on the device.
            start: First slot of each row, int64 [B] on the device.
            read_length: Slots that attention reads, above every slot inside the context.

        Returns:
            As `forward`.
        """
        positions, length = self._begin_on_device(start, token_ids.shape[1], read_length)
        mask = additive_mask(positions, length, _FULL, self.dtype)
        return self._step(token_ids, hidden, positions, mask, module)

    def _step(
        self, token_ids: Tensor, hidden: Tensor, positions: Tensor, mask: Tensor, module: int
    ) -> Tensor:
        def attend_cached(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = self.cache.update(key, value, module)
            return attend(query, keys, values, mask, None)

        angles = self._rotations(positions)
        embedded = self._embed(token_ids)
        return self._network.step(embedded, hidden, angles, attend_cached, module)
