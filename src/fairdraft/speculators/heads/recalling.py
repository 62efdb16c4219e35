"""A head over a ragged batch that reads the target's keys and values and has none of its own.

Axes: B rows, H width of the head.
"""

from __future__ import annotations

from torch import Tensor

from fairdraft.models import RaggedCache
from fairdraft.models.packing import can_pack, pack_linear_layers
from fairdraft.speculators.heads.shared_kv import SharedKvHead
from fairdraft.speculators.memory import TargetMemory


class RecallingHead:
    """Runs one step of every row at once.

    Args:
        head: Joined to its target, in evaluation mode; its weights must not change after.
        num_slots: The target's context.

    Attributes:
        head: The network.
        num_slots: As given.
        caches: None: nothing is kept between rounds.
        num_moves: Therefore 0, see `CachedNetwork.num_moves`.
    """

    caches: tuple[RaggedCache, ...] = ()
    num_moves = 0

    def __init__(self, head: SharedKvHead, num_slots: int) -> None:
        self.head = head
        self.num_slots = num_slots
        weight = head.first_weight
        self.device, self.dtype = weight.device, weight.dtype
        if can_pack(head):
            pack_linear_layers(head)

    def reserve(self, num_rows: int, read_length: int) -> None:
        """Does nothing: what rounds read is the target's."""

    def fuse(self, states: tuple[Tensor, ...]) -> Tensor:
        """As `Head.fuse`."""
        return self.head.fuse(states)

    def logits(self, hidden: Tensor, module: int = 0) -> Tensor:
        """As `Head.logits`."""
        return self.head.logits(hidden, module)

    def carry(self, outputs: Tensor) -> Tensor:
        """As `SharedKvHead.carry`."""
        return self.head.carry(outputs)

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of one position a row, int64 [B], each [B, 1, 1, D]."""
        return self.head.angles(positions[:, None].to(self.device))

    def forward(
        self,
        token_ids: Tensor,
        hidden: Tensor,
        angles: tuple[Tensor, Tensor],
        memory: TargetMemory,
    ) -> Tensor:
        """Runs a step.

        Args:
            token_ids: The token that each row reads, int64 [B].
            hidden: As `SharedKvHead.recall` takes it [B, H].
            angles: Of the rows' positions, as `angles` gives them.
            memory: The target's, of the same rows.

        Returns:
            Normed outputs [B, H].
        """
        tokens = token_ids[:, None].to(self.device)
        return self.head.recall(tokens, hidden[:, None], angles, memory.attend)[:, 0]
