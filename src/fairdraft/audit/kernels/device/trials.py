"""Runs a row's trials through the kernels of a device, and holds some against the host's ops.

Axes: N texts, L tokens a text, C columns of the experiment.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fairdraft.audit.device_layouts import host_twin, planted
from fairdraft.audit.kernels.device.decoder import Decoded, Decoder
from fairdraft.audit.kernels.device.rows import DeviceRow
from fairdraft.audit.kernels.result import Replay
from fairdraft.audit.kernels.trials import Trials
from fairdraft.audit.subject import InvalidSubject

__all__ = ["MAX_TIES", "NUM_REPLAYED", "compile_row", "run_row"]

#: texts that the host decodes as well
NUM_REPLAYED = 16
#: of them may differ in `fast` arithmetic, whose near ties have a chance of 2e-6 a draw
MAX_TIES = 1
#: elements of a table's rows that texts copy, and rows of statistics of texts, in one step
_ELEMENTS, _TILE_ROWS = 1 << 29, 1 << 24


def decoder_of(row: DeviceRow, key: int, device: torch.device) -> Decoder:
    """What decodes a row's texts by the kernels; the layout is put in place elsewhere."""
    return Decoder(
        row.experiment,
        row.call,
        key,
        counts=row.layout == "independent",
        constant_position=row.constant_position,
        device=device,
        impl="triton",
    )


def chunk_of(row: DeviceRow) -> int:
    """Texts in step: a power of two, so that few shapes are compiled."""
    width, depth = row.call.vocab_size, row.experiment.decoding.num_drafts
    chunk = _TILE_ROWS // (-(-width // 512))
    if len(row.experiment.pair.target_logits) > 1:
        chunk = min(chunk, _ELEMENTS // (width * (depth + 1)))
    return 1 << min(20, chunk.bit_length() - 1)


def run_row(row: DeviceRow, key: int, device: torch.device) -> tuple[Trials, Replay]:
    """Decodes every trial; the layout is in place meanwhile, and counts alone come back.

    Raises:
        InvalidSubject: If a row could not be sampled, or a draft had no chance.
    """
    experiment = row.experiment
    decoder, chunk = decoder_of(row, key, device), chunk_of(row)
    size = experiment.pair.vocab_size
    # one more for texts that have no cell
    counts = torch.zeros(size**experiment.num_tokens + 1, dtype=torch.int64, device=device)
    num_accepted, num_faults = torch.zeros(2, dtype=torch.int64, device=device)
    head: list[Tensor] = []
    with planted(row.layout):
        for first in range(0, experiment.num_trials, chunk):
            decoded = decoder.decode(first, min(chunk, experiment.num_trials - first))
            counts += torch.bincount(_cells(decoded.columns, size), minlength=len(counts))
            num_accepted += decoded.is_accepted.sum()
            num_faults += decoded.num_faults
            # of the run itself: another call of few texts would have kernels of its own
            head = head or [decoded.columns[:NUM_REPLAYED], decoded.is_accepted[:NUM_REPLAYED]]
    wanted = decode_on_host(row, decoder, len(head[0]))
    if num_faults:
        raise InvalidSubject(f"{row.name}: {int(num_faults)} rows could not be sampled or tested")
    found = counts.cpu().numpy()
    trials = Trials(found[:-1], int(num_accepted), int(found[-1]))
    return trials, _compared(row, [part.cpu() for part in head], wanted)


def decode_on_host(row: DeviceRow, decoder: Decoder, count: int) -> Decoded:
    """The first texts by the host's ops, under the same layout."""
    host = replace(decoder, device=torch.device("cpu"), impl="auto")
    with host_twin(row.layout):
        return host.decode(0, count)


def _compared(row: DeviceRow, head: list[Tensor], wanted: Decoded) -> Replay:
    columns, is_accepted = head
    is_other = (columns != wanted.columns).any(1) | (is_accepted != wanted.is_accepted)
    allowed = MAX_TIES if row.call.arithmetic == "fast" else 0
    return Replay(len(columns), int(is_other.sum()), allowed)


def _cells(columns: Tensor, size: int) -> Tensor:
    """The cell of each text; the last one for a text with a token that has no chance."""
    cells = torch.zeros_like(columns[:, 0])
    for column in columns.unbind(1):
        cells = cells * size + column
    return torch.where((columns < 0).any(1), size ** columns.shape[1], cells)


def compile_row(row: DeviceRow, device: str) -> str | None:
    """Compiles what a row needs and leaves it in Triton's cache for other processes.

    Returns:
        What went wrong, or None. The row itself then says so in the open.
    """
    where = torch.device(device)
    count = min(chunk_of(row), row.experiment.num_trials)
    try:
        with planted(row.layout):
            decoder_of(row, 0, where).decode(0, count).columns.cpu()
    except Exception as error:
        return f"{row.name}: {error}"
    return None
