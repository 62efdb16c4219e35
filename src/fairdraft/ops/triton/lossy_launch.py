"""Launches of the lossy rules' kernels.

Axes: B requests, K drafts, R = K + 1 rows, V vocabulary, T tiles.
"""

# launch options are no parameters of a kernel, and plain values are its constants
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fairdraft.noise import device as noise_device
from fairdraft.ops.arithmetic import TILE, power_of_two
from fairdraft.ops.dispatch import own_device
from fairdraft.ops.lossy import RESIDUAL, LossyRule, Numbers
from fairdraft.ops.triton.chain_memory import DeviceChain, chain_memory, residual_memory
from fairdraft.ops.triton.emit import emit_kernel
from fairdraft.ops.triton.launch import Arithmetic, max_tiles
from fairdraft.ops.triton.lossy import lossy_kernel
from fairdraft.ops.triton.resolve import resolve_kernel
from fairdraft.ops.triton.target import sharing_warps
from fairdraft.ops.triton.verify import chain_shape, constants_of, drafts_of, residual_shape
from fairdraft.ops.triton.workspace import Workspace

_FLOAT = torch.float32


def launch_lossy(
    chain: DeviceChain,
    out: tuple[Tensor, ...],
    *,
    rule: LossyRule,
    arithmetic: Arithmetic,
    workspace: Workspace,
) -> None:
    """Fills what `verify.launch_verify` does, by a lossy rule; its numbers are compiled in.

    Raises:
        ValueError: If the rule has no rate for a draft.
    """
    numbers = Numbers.of(rule, chain.sizes[1])
    with own_device(chain.token_ids.device):
        workspace.begin()
        _launch_all(chain, out, numbers, arithmetic, workspace)
        workspace.end()


def _launch_all(
    chain: DeviceChain,
    out: tuple[Tensor, ...],
    numbers: Numbers,
    arithmetic: Arithmetic,
    workspace: Workspace,
) -> None:
    count, depth, vocab_size = chain.sizes
    num_tiles = -(-vocab_size // TILE)
    rows = count * (depth + 1)
    # each kernel takes these, in this order
    inputs = (
        chain.target,
        chain.draft or chain.target,
        tuple(t for t, _ in chain.temperatures),
        drafts_of(chain, workspace),
        chain.at[0],
        *chain_memory(workspace, chain, num_tiles),
    )
    limits = ((count, vocab_size, num_tiles), chain.num_rows, chain.num_slots)
    common = constants_of(chain, False, arithmetic, noise_device.pack_counter)
    reach = (max_tiles(num_tiles), power_of_two(depth + 1))
    tiles, warps = chain_shape(rows, num_tiles)
    lossy_kernel[(rows * -(-num_tiles // tiles),)](
        *inputs,
        workspace.empty("lossy_spread", (rows, num_tiles if numbers.kind == 0 else 1), _FLOAT),
        workspace.zeros("rows_done", (rows,), torch.int32),
        *limits,
        RULE=(numbers.kind, numbers.replaced, *(float(value) for value in numbers.values)),
        SHAPE=(tiles, *reach),
        **common | {"num_warps": sharing_warps(workspace.device, warps)},
    )
    residual = residual_memory(workspace, count, 1)
    has_residuals = numbers.replaced == RESIDUAL and chain.draft is not None and depth > 0
    if has_residuals:
        residual = residual_memory(workspace, count, num_tiles)
        tiles, loops, warps = residual_shape(count, num_tiles, arithmetic)
        resolve_kernel[(count * -(-num_tiles // (tiles * loops)),)](
            *inputs,
            residual,
            *limits,
            SHAPE=(tiles, *reach, loops),
            **common | {"num_warps": warps},
        )
    final: dict[str, Any] = common | {"num_warps": 4}
    emit_kernel[(count,)](
        *inputs, residual, out, *limits, SHAPE=(1, *reach, int(has_residuals)), **final
    )
