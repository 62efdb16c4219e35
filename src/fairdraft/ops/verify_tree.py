"""Verification of a tree of drafts in one call: follow accepted nodes, sample one token more.

Axes: B rows, N nodes besides the root, D depth of the deepest present node, V vocabulary, C
candidates of a sparse draft law.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fairdraft.noise import Stream, Trace
from fairdraft.ops.chain_inputs import SparseLogits
from fairdraft.ops.dispatch import Arithmetic, Impl, device_of, resolve_arithmetic, resolve_impl
from fairdraft.ops.rows import PLACEHOLDER_TOKEN_ID, RowError
from fairdraft.ops.sample import TileStats, refuse_traced
from fairdraft.ops.tree_inputs import Shape, TreeInputs, TreeOutputs, tree_inputs
from fairdraft.ops.tree_trace import record_tree
from fairdraft.ops.verdict import DecisionWeights, TreeVerdict
from fairdraft.ops.verify import refuse_on_device

if TYPE_CHECKING:
    from fairdraft.ops.triton.workspace import Workspace


def verify_tree(
    target_logits: Tensor,
    draft_token_ids: Tensor,
    parents: Any,
    num_draft_tokens: Any,
    *,
    draft_logits: Tensor | SparseLogits | None,
    key: Any,
    anchor: Any,
    sample: Any = 0,
    temperature: Any = 1.0,
    draft_temperature: Any = None,
    point_mass: Any = None,
    forbidden: Any = None,
    max_depth: int | None = None,
    return_weights: bool = False,
    impl: Impl = "auto",
    arithmetic: Arithmetic = "auto",
    draft_stats: TileStats | None = None,
    trace: Trace | None = None,
    workspace: Workspace | None = None,
    validate: bool = True,
) -> TreeVerdict:
    """Walks down each tree of drafts while a child stands, and samples the token after that.

    Node 0 is the root, the last decided token; nodes 1..N are drafts, numbered in order of
    creation. Children of one node are siblings, candidates for the same token, in the order drawn.

    Args:
        target_logits: Floating point [B, N + 1, V]; row r is the law after node r. Filtered (-inf)
            but not divided by temperature.
        draft_token_ids: int64 [B, N]; node c in column c - 1. -1 is an absent node, and what is
            below it is absent too; any other id outside the vocabulary is forbidden.
        parents: int64 [B, N], or [N] for one tree for all rows: the node that each is a child of.
            For a GPU they are best on the host, [N]: that says how far a walk can go. If they are
            on the device, N + 1 passes are launched, of which most find nothing to do.
        num_draft_tokens: int64 [B], nodes of each row, the first ones; absent ones count.
        draft_logits: [B, N, V] or SparseLogits, in column c - 1 the law that node c's siblings were
            drawn from: the first from all of it, each other one without those before it (sampling
            without replacement). None: every draft is a point mass.
        key, anchor, sample, temperature, draft_temperature: As in `verify_chain`.
        point_mass: bool [B], rows whose drafts are point masses in spite of `draft_logits`.
        forbidden: bool [B, N], drafts with p = 0 (a grammar, say): rejected, and rows below them
            are not read.
        max_depth: D, the width of the result less one. None for the depth of the deepest present
            node; on a GPU for that of `parents` if they are on the host, else for N.
        return_weights: Also return the noise-free decision weights (for tests: B (N + 1) V
            float64).
        impl: "auto", "reference", "cpu" or "triton"; refused if it cannot run. Tensors on a GPU
            are verified there, and the call does not wait for it.
        arithmetic: As in `ops.sample`.
        draft_stats: Statistics of the rows that the nodes were drawn from, each without its elder
            siblings (-inf), from their own sampling at draft_temperature, B N rows in order; q's
            rows are then read only where a child was rejected (GPU).
        trace: Records every address used with a digest of what was tested or raced (CPU).
        workspace, validate: As in `ops.sample` (GPU).

    Returns:
        TreeVerdict, on the device of the logits. A row that the walk reads and that holds NaN, +inf
        or no token is an error of its request: accepted tokens stand, nothing follows them.

    Raises:
        ValueError: If a shape, dtype, parent or parameter is out of range, or a present node is
            deeper than `max_depth`. What only a device can see is an error of its request instead,
            a parent and a depth too.

    Noise:
        ACCEPT at position anchor + depth(c) - 1, node c for each candidate tested; RESIDUAL at
        anchor + depth(r), node r where every child of r was rejected, or BONUS where it has none;
        TARGET at anchor 0 for rows without drafts. Point masses race at each row walked and consume
        no ACCEPT. A chain given as a tree has the addresses, and so the tokens, of rule `token`.

    Law:
        If each sibling was drawn from softmax(draft_logits / draft_temperature) restricted to what
        its earlier siblings left, with other noise, every emitted token follows
        softmax(target_logits / temperature) at its row, exactly given the logits. The shape of the
        tree may depend on laws and on ancestors, never on the drawn values that it arranges
        (`docs/rules.md`). Source: recursive rejection sampling, Jeon et al. 2024 (RSD).
    """
    at, temperatures = (key, anchor, sample), (temperature, draft_temperature)
    marks = (point_mass, forbidden)
    given = (target_logits, draft_token_ids, parents, num_draft_tokens)
    if max_depth is not None and (isinstance(max_depth, float) or max_depth < 0):
        raise ValueError(
            f"max_depth = {max_depth} is no depth; give an integer of 0 or more, or None"
        )
    if torch.compiler.is_compiling():
        from fairdraft.ops.custom_tree import traced_tree

        refuse_traced(return_weights=return_weights, trace=trace, workspace=workspace)
        named: dict[str, Any] = {"max_depth": max_depth, "impl": impl, "arithmetic": arithmetic}
        return traced_tree(given, draft_logits, at, temperatures, marks, draft_stats, **named)
    backend = resolve_impl(impl, device_of(target_logits))
    arithmetic = resolve_arithmetic(arithmetic, backend)
    if backend == "triton":
        from fairdraft.ops.triton.tree_verification import verify_tree_on_device

        refuse_on_device(return_weights=return_weights, trace=trace is not None)
        return verify_tree_on_device(
            *given,
            draft_logits=draft_logits,
            at=at,
            temperatures=temperatures,
            marks=marks,
            max_depth=max_depth,
            arithmetic=arithmetic,
            draft_stats=draft_stats,
            workspace=workspace,
            validate=validate,
        )
    if draft_stats is not None or workspace is not None:
        raise ValueError("draft_stats and workspace are for tensors on a GPU; leave them out")
    inputs = tree_inputs(*given, draft_logits, at, temperatures, marks)
    return _verify_on_host(inputs, backend == "cpu", max_depth, trace, return_weights)


def _verify_on_host(
    inputs: TreeInputs,
    is_cpu: bool,
    max_depth: int | None,
    trace: Trace | None,
    return_weights: bool,
) -> TreeVerdict:
    if is_cpu:
        from fairdraft.ops.cpu.tree import tree_weights_cpu as fill
        from fairdraft.ops.cpu.tree import verify_tree_cpu as walk
    else:
        from fairdraft.ops.tree import tree_weights_reference as fill
        from fairdraft.ops.tree import verify_tree_reference as walk
    outputs = _empty_outputs(inputs, max_depth)
    walk(inputs, outputs)
    if trace is not None:
        record_tree(trace, inputs, outputs)
    weights = None
    if return_weights:
        count, num_rows, vocab_size = inputs.target.shape
        accept = np.zeros((count, num_rows - 1))
        law = np.zeros((count, num_rows, vocab_size))
        fill(inputs, accept, law)
        ends = torch.from_numpy(tree_ends(inputs.shape, accept))
        weights = DecisionWeights(torch.from_numpy(accept), torch.from_numpy(law), ends)
    return TreeVerdict(
        torch.from_numpy(outputs.token_ids),
        torch.from_numpy(outputs.num_accepted),
        torch.from_numpy(outputs.num_accepted + (outputs.error == RowError.NONE)),
        torch.from_numpy(_last_stream(inputs, outputs)),
        torch.from_numpy(outputs.margin),
        torch.from_numpy(outputs.error),
        int(outputs.num_broken.sum()),
        weights,
        path=torch.from_numpy(outputs.path),
        first_child=torch.from_numpy(_first_child(inputs, outputs)),
    )


def tree_ends(shape: Shape, accept: np.ndarray) -> np.ndarray:
    """Chances [B, N + 1] that a walk ends at each row, if children are tested in turn."""
    ends = np.zeros(shape.is_present.shape)
    for b in range(len(accept)):
        reached = np.zeros(accept.shape[1] + 1)
        reached[0] = 1.0
        # a node's children are numbered after it
        for r in range(len(reached)):
            left = reached[r]
            for c in shape.children(b, r):
                reached[c] = left * accept[b, c - 1]
                left *= 1.0 - accept[b, c - 1]
            ends[b, r] = left
    return ends


def _empty_outputs(inputs: TreeInputs, max_depth: int | None) -> TreeOutputs:
    count, size = inputs.token_ids.shape
    depth = inputs.shape.depth
    if max_depth is not None and depth > max_depth:
        raise ValueError(f"a present node is {depth} deep, deeper than max_depth = {max_depth}")
    width = (depth if max_depth is None else max_depth) + 1
    return TreeOutputs(
        np.full((count, width), PLACEHOLDER_TOKEN_ID, np.int64),
        np.full((count, width), -1, np.int64),
        np.zeros(count, np.int64),
        np.zeros((count, width)),
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
        np.zeros((count, size), bool),
    )


def _last_stream(inputs: TreeInputs, outputs: TreeOutputs) -> np.ndarray:
    row = np.arange(len(outputs.path))
    last = outputs.path[row, outputs.num_accepted]
    has_child = inputs.shape.first_child[row, last] > 0
    stream = np.where(has_child, int(Stream.RESIDUAL), int(Stream.BONUS))
    stream[inputs.shape.first_child[:, 0] == 0] = Stream.TARGET
    stream[outputs.error != RowError.NONE] = 0
    return stream


def _first_child(inputs: TreeInputs, outputs: TreeOutputs) -> np.ndarray:
    row = np.arange(len(outputs.path))[:, None]
    found = inputs.shape.first_child[row, outputs.path.clip(0)]
    return np.where(outputs.path >= 0, found, 0)
