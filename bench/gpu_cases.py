"""What `gpu_ops.py` times: cases of the ops, their inputs, and calls that write in place.

Axes: B rows or requests, K drafts, N nodes of a tree, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairdraft import ops
from fairdraft.noise import Stream
from fairdraft.ops import DeviceAddress, Sampled, TileStats
from fairdraft.ops.triton.workspace import Workspace

NUM_DRAFTS = 5
LOGIT_SCALE = 3.0
#: distance of the draft's logits from the target's: about 3 of 5 drafts are accepted
DRAFT_DISTANCE = 0.42
#: three children, two below each and one below each of these: 15 nodes
TREE = (0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9)
#: P of a point-mass draft, for about as many
POINT_MASS_PROBABILITY = 0.83


class Case(NamedTuple):
    """One op with its options; `drafts` says where a verification's drafts come from."""

    name: str
    op: str
    dtype: str = "float32"
    method: Any = "race"
    arithmetic: Any = "fast"
    rule: Any = "token"
    drafts: str = "near"
    has_stats: bool = True
    top_k: int | None = None
    top_p: float | None = None


# point masses come last: they change the target's rows
CASES = (
    Case("sample", "sample"),
    Case("sample bf16", "sample", "bfloat16"),
    Case("sample bf16 portable", "sample", "bfloat16", arithmetic="portable"),
    Case("sample gumbel", "sample", method="gumbel"),
    Case("sample top-k 50 top-p 0.9", "sample", top_k=50, top_p=0.9),
    Case("token", "verify"),
    Case("token, no statistics", "verify", has_stats=False),
    Case("token, p = q", "verify", drafts="equal"),
    Case("block", "verify", rule="block"),
    Case("block, p = q", "verify", rule="block", drafts="equal"),
    Case("point mass", "verify", drafts="point mass"),
)
#: timed and checked where `--only` names them
TREE_CASES = (
    Case("tree", "tree"),
    Case("tree, no statistics", "tree", has_stats=False),
    Case("tree portable", "tree", arithmetic="portable"),
)


class Proposal(NamedTuple):
    """Drafts with what they were drawn from."""

    token_ids: Tensor  # int64 [B, K]
    logits: Tensor | None  # [B, K, V]
    stats: TileStats | None


class Inputs(NamedTuple):
    """One set of inputs of an op."""

    logits: Tensor  # [B, V], or the target's [B, K + 1, V], [B, N + 1, V]
    proposals: dict[str, Proposal]


def key_of(batch: int, device: torch.device) -> Tensor:
    """One request key a row."""
    return (torch.arange(1, batch + 1, device=device) * 0x1E3779B97F4A7C15) & ((1 << 63) - 1)


def sample_inputs(batch: int, vocab_size: int, dtype: str, generator: torch.Generator) -> Inputs:
    """Rows of normal logits."""
    shape = (batch, vocab_size)
    logits = torch.randn(shape, generator=generator, device=generator.device).mul_(LOGIT_SCALE)
    return Inputs(logits.to(getattr(torch, dtype)), {})


def verify_inputs(
    batch: int, vocab_size: int, generator: torch.Generator, depth: int = NUM_DRAFTS
) -> Inputs:
    """A target, a draft near it and a draft equal to it, each with tokens drawn from it."""
    device = generator.device
    shape = (batch, depth + 1, vocab_size)
    target = torch.randn(shape, generator=generator, device=device).mul_(LOGIT_SCALE)
    near = torch.randn((batch, depth, vocab_size), generator=generator, device=device)
    near = near.mul_(DRAFT_DISTANCE).add_(target[:, :-1])
    return Inputs(target, {"near": _drawn(near), "equal": _drawn(target[:, :-1])})


def _drawn(logits: Tensor) -> Proposal:
    batch, depth, vocab_size = logits.shape
    steps = torch.arange(depth, device=logits.device).repeat(batch)
    key = key_of(batch, logits.device).repeat_interleave(depth)
    at = DeviceAddress(Stream.DRAFT, key, steps + 1, 1, steps + 1)
    rows = logits.reshape(batch * depth, vocab_size)
    drawn = ops.sample(rows, at, impl="triton", arithmetic="fast", return_stats=True)
    return Proposal(drawn.token_ids.view(batch, depth), logits, drawn.stats)


def tree_inputs(batch: int, vocab_size: int, generator: torch.Generator) -> Inputs:
    """A target and a tree of drafts near it, siblings drawn without replacement."""
    device, size = generator.device, len(TREE)
    shape = (batch, size + 1, vocab_size)
    target = torch.randn(shape, generator=generator, device=device).mul_(LOGIT_SCALE)
    law = torch.empty(batch, size, vocab_size, device=device)
    ids = torch.empty(batch, size, dtype=torch.int64, device=device)
    parts = []
    for c, parent in enumerate(TREE, 1):
        elders = [e for e in range(1, c) if TREE[e - 1] == parent]
        if elders:
            law[:, c - 1] = law[:, elders[0] - 1]
        else:
            noise = torch.randn((batch, vocab_size), generator=generator, device=device)
            law[:, c - 1] = noise.mul_(DRAFT_DISTANCE).add_(target[:, parent])
        left = law[:, c - 1].clone()
        for elder in elders:
            left.scatter_(1, ids[:, elder - 1 : elder], -torch.inf)
        at = DeviceAddress(Stream.DRAFT, key_of(batch, device), 1, 1, c)
        drawn = ops.sample(left, at, impl="triton", arithmetic="fast", return_stats=True)
        assert drawn.stats is not None
        ids[:, c - 1] = drawn.token_ids
        parts.append(drawn.stats.tensors())
    stats = TileStats(*(torch.stack(p, 1).flatten(0, 1) for p in zip(*parts, strict=True)))
    return Inputs(target, {"near": Proposal(ids, law, stats)})


def rows_needed(verdict: ops.TreeVerdict) -> int:
    """Rows that walks cannot do without: of p on their paths, of q of each child rejected there."""
    count = 0
    for path, accepted in zip(
        verdict.path.tolist(), verdict.num_accepted_tokens.tolist(), strict=True
    ):
        for depth in range(accepted + 1):
            child = path[depth + 1] if depth < accepted else len(TREE) + 1
            count += 1 + sum(c < child for c, p in enumerate(TREE, 1) if p == path[depth])
    return count


def make_point_masses(inputs: Inputs) -> Inputs:
    """The same rows with one token raised to P = 0.83, in place: the draft."""
    token_ids = inputs.proposals["near"].token_ids
    drafted = inputs.logits[:, :-1]
    at = token_ids[..., None]
    own = drafted.gather(-1, at)
    drafted.scatter_(-1, at, -torch.inf)
    odds = torch.tensor(POINT_MASS_PROBABILITY, device=own.device).logit()
    drafted.scatter_(-1, at, torch.logsumexp(drafted, -1, keepdim=True) + odds)
    return Inputs(inputs.logits, {"point mass": Proposal(token_ids, None, None)})


def sample_call(case: Case, inputs: Inputs, workspace: Workspace) -> Callable[[], Sampled]:
    """A call that writes into what its first run returned."""
    batch = len(inputs.logits)
    position = torch.arange(100, 100 + batch, device=inputs.logits.device)
    call = partial(
        ops.sample,
        inputs.logits,
        DeviceAddress(Stream.TARGET, key_of(batch, inputs.logits.device), position),
        top_k=case.top_k,
        top_p=case.top_p,
        method=case.method,
        impl="triton",
        arithmetic=case.arithmetic,
        workspace=workspace,
    )
    return partial(call, out=call())


def verify_call(case: Case, inputs: Inputs, workspace: Workspace) -> Callable[[], ops.Verdict]:
    """A call whose every argument is on the device."""
    token_ids, counts, options = _verification(case, inputs, workspace)
    return partial(ops.verify_chain, inputs.logits, token_ids, counts, rule=case.rule, **options)


def tree_call(case: Case, inputs: Inputs, workspace: Workspace) -> Callable[[], ops.TreeVerdict]:
    """A call whose every argument is on the device, but for the tree's shape."""
    token_ids, counts, options = _verification(case, inputs, workspace)
    return partial(ops.verify_tree, inputs.logits, token_ids, TREE, counts, **options)


def _verification(
    case: Case, inputs: Inputs, workspace: Workspace
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Drafts, how many each request has, and what both rules are told besides."""
    proposal = inputs.proposals[case.drafts]
    batch, size = proposal.token_ids.shape
    device = inputs.logits.device
    options = {
        "draft_logits": proposal.logits,
        "key": key_of(batch, device),
        "anchor": torch.ones(batch, dtype=torch.int64, device=device),
        "impl": "triton",
        "arithmetic": case.arithmetic,
        "draft_stats": proposal.stats if case.has_stats else None,
        "workspace": workspace,
    }
    return proposal.token_ids, torch.full((batch,), size, device=device), options


def call_of(case: Case, inputs: Inputs, workspace: Workspace) -> Callable[[], Any]:
    """The call that a case times."""
    calls = {"sample": sample_call, "verify": verify_call, "tree": tree_call}
    return calls[case.op](case, inputs, workspace)
