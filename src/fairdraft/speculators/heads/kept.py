"""The last outputs of a module, row by row, where the next block goes on.

Axes: B rows, Q slots, H width of the head.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class KeptOutputs:
    """Keeps what each row's last slots gave, at their slot modulo the number kept.

    Args:
        num_kept: Slots kept of each row.
        size: H.
        dtype, device: Of the outputs.
    """

    def __init__(self, num_kept: int, size: int, dtype: torch.dtype, device: torch.device) -> None:
        self._num_kept = num_kept
        self._outputs = torch.zeros(1, num_kept, size, dtype=dtype, device=device)
        #: how often the outputs went to other memory, whose addresses graphs hold
        self.num_moves = 0

    def at(self, slots: np.ndarray, first_row: int = 0) -> Tensor:
        """What a slot of each row gave [B, H]; anything where the slot is negative or forgotten."""
        return self.at_on_device(torch.from_numpy(slots).to(self._outputs.device), first_row)

    def at_on_device(self, slots: Tensor, first_row: int = 0) -> Tensor:
        """`at` for slots that stay on the device, int64 [B]."""
        rows = torch.arange(first_row, first_row + len(slots), device=slots.device)
        return self._outputs[rows, slots % self._num_kept]

    def put(
        self, outputs: Tensor, start: np.ndarray, counts: np.ndarray, first_row: int = 0
    ) -> None:
        """Takes in the outputs of a block [B, Q, H], slots `start` to `start + counts - 1`."""
        column = np.arange(outputs.shape[1])
        is_kept = (column < counts[:, None]) & (column >= counts[:, None] - self._num_kept)
        row, column = np.nonzero(is_kept)
        place = (start[row] + column) % self._num_kept
        at = [torch.from_numpy(index).to(outputs.device) for index in (row, column, place)]
        self._outputs[first_row + at[0], at[2]] = outputs[at[0], at[1]]

    def put_on_device(self, outputs: Tensor, start: Tensor) -> None:
        """Takes in whole blocks [B, Q, H], padding too, from slots `start` on, int64 [B].

        Q is below the number kept, so that what the slot before a block gave stays.
        """
        num_rows, width = outputs.shape[:2]
        assert width < self._num_kept
        columns = torch.arange(width, device=start.device)
        rows = torch.arange(num_rows, device=start.device)[:, None]
        self._outputs[rows, (start[:, None] + columns) % self._num_kept] = outputs

    def reserve(self, row: int) -> None:
        """Makes room for a row."""
        if row >= len(self._outputs):
            grown = self._outputs.new_zeros(2 * row, *self._outputs.shape[1:])
            grown[: len(self._outputs)] = self._outputs
            self._outputs = grown
            self.num_moves += 1

    def move_row(self, source: int, destination: int) -> None:
        """Moves a row's outputs."""
        self._outputs[destination] = self._outputs[source]
        self._outputs[source] = 0

    def drop_row(self, row: int) -> None:
        """Frees a row."""
        self._outputs[row] = 0
