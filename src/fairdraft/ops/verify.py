"""Verification of a chain of drafts in one call: accept a prefix, sample one token more.

Axes: B rows, K drafts, V vocabulary, C candidates of a sparse draft law.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from fairdraft import noise
from fairdraft.noise import Stream, Trace
from fairdraft.noise.address import as_keys
from fairdraft.ops import chain_trace, rows, rules
from fairdraft.ops.chain_inputs import (
    ChainInputs,
    ChainOutputs,
    check_candidates,
    check_counts,
    check_forbidden,
)
from fairdraft.ops.dispatch import Arithmetic, Impl, device_of, resolve_arithmetic, resolve_impl
from fairdraft.ops.rows import PLACEHOLDER_TOKEN_ID, RowError
from fairdraft.ops.sample import Method, TileStats, check_method
from fairdraft.ops.verdict import DecisionWeights, Verdict

if TYPE_CHECKING:
    from fairdraft.ops.triton.workspace import Workspace

Rule = Literal["token", "block"]


@dataclass(frozen=True)
class SparseLogits:
    """A draft law on C candidates: int64 token_ids [B, K, C] (-1 pads) and float logits."""

    token_ids: Tensor
    logits: Tensor


def verify_chain(
    target_logits: Tensor,
    draft_token_ids: Tensor,
    num_draft_tokens: Any,
    *,
    draft_logits: Tensor | SparseLogits | None,
    key: Any,
    anchor: Any,
    sample: Any = 0,
    temperature: Any = 1.0,
    draft_temperature: Any = None,
    point_mass: Tensor | None = None,
    forbidden: Tensor | None = None,
    rule: Rule = "token",
    method: Method = "race",
    return_weights: bool = False,
    impl: Impl = "auto",
    arithmetic: Arithmetic = "auto",
    draft_stats: TileStats | None = None,
    trace: Trace | None = None,
    workspace: Workspace | None = None,
    validate: bool = True,
) -> Verdict:
    """Accepts a prefix of each chain of drafts and samples the one token that follows it.

    Args:
        target_logits: Floating point [B, K + 1, V]; row r is the law after r drafts. Filtered
            (-inf) but not divided by temperature.
        draft_token_ids: int64 [B, K]. -1 ends a row's drafts (absent); any other id outside the
            vocabulary is forbidden. A sampled one needs its q there: pad both logits to hold it,
            or it counts as broken.
        num_draft_tokens: int64 [B], 0..K present drafts of each row.
        draft_logits: [B, K, V] exactly as they were sampled, SparseLogits, or None: every draft
            is a point mass.
        key, anchor, sample: Request key (uint64), index of the first undecided token and sample
            index, scalar or [B]: they name the noise.
        temperature: Scalar or [B]; below 1e-5 the row is greedy, whatever its drafts are.
        draft_temperature: What drafts were sampled with; None for `temperature`.
        point_mass: bool [B], rows whose drafts are point masses in spite of `draft_logits`.
        forbidden: bool [B, K], drafts with p = 0 (a grammar, say). A forbidden draft keeps its q,
            is rejected, and rows after it are not read.
        rule: "token" (Leviathan et al. 2023, algorithm 1) tests draft by draft; "block" (Sun et
            al. 2024, algorithm 2) tests whole prefixes and accepts at least as many drafts.
        method: How tokens are drawn: "race", or "gumbel" (a number for every token); see
            `ops.sample`. Up to 512 ids both give the same tokens.
        return_weights: Also return the noise-free decision weights (for tests: B (K+1) V float64).
        impl: "auto", "reference", "cpu" or "triton"; refused if it cannot run. Tensors on a GPU
            are verified there, and the call does not wait for it.
        arithmetic: As in `ops.sample`.
        draft_stats: Statistics of the drafts' rows from their own sampling, B K rows in order; q's
            rows are then read only where a draft was rejected (GPU).
        trace: Records every address used with a digest of what was tested or raced (CPU).
        workspace, validate: As in `ops.sample` (GPU).

    Returns:
        Verdict, on the device of the logits. A row that the walk reads and that holds NaN, +inf or
        no token is an error of its request: accepted tokens stand, nothing follows them. Rule
        "block" reads every row up to a draft that cannot stand before it accepts any, so there
        nothing is emitted.

    Raises:
        ValueError: If a shape, dtype or parameter is out of range.

    Noise:
        ACCEPT at position anchor + i, node i + 1 for each draft tested; RESIDUAL at anchor + r,
        node r after a rejection at row r, or BONUS after the last draft; TARGET at anchor 0 for
        rows without drafts. Point masses race at each row walked and consume no ACCEPT. Rule
        "block" makes its tests from the last draft back to the one that stands.

    Law:
        If draft i was drawn from softmax(draft_logits_i / draft_temperature) with other noise,
        every emitted token follows softmax(target_logits / temperature) at its row, exactly
        given the logits (`docs/derivation.md`).
    """
    if rule not in ("token", "block"):
        raise ValueError(f"rule = {rule!r} is not built in this release; use 'token' or 'block'")
    check_method(method)
    backend = resolve_impl(impl, device_of(target_logits))
    arithmetic = resolve_arithmetic(arithmetic, backend)
    if backend == "triton":
        from fairdraft.ops.triton.verification import verify_on_device

        _refuse_on_device(
            method=method != "race", return_weights=return_weights, trace=trace is not None
        )
        return verify_on_device(
            target_logits,
            draft_token_ids,
            num_draft_tokens,
            draft_logits=draft_logits,
            at=(key, anchor, sample),
            temperatures=(temperature, draft_temperature),
            marks=(point_mass, forbidden),
            is_block=rule == "block",
            arithmetic=arithmetic,
            draft_stats=draft_stats,
            workspace=workspace,
            validate=validate,
        )
    if draft_stats is not None or workspace is not None:
        raise ValueError("draft_stats and workspace are for tensors on a GPU; leave them out")
    inputs = _chain_inputs(
        target_logits,
        draft_token_ids,
        num_draft_tokens,
        draft_logits,
        (temperature, draft_temperature),
        (point_mass, forbidden),
        (key, anchor, sample),
    )
    if method != "race":
        inputs = inputs._replace(method=method)
    is_cpu = backend == "cpu"
    outputs = _empty_outputs(*inputs.target.shape[:2])
    num_tested = _implementation(rule, is_cpu)(inputs, outputs)
    last_stream = _last_stream(inputs, outputs)
    if trace is not None:
        chain_trace.record(trace, inputs, outputs, num_tested)
    weights = _weights(inputs, rule, is_cpu) if return_weights else None
    return Verdict(
        torch.from_numpy(outputs.token_ids),
        torch.from_numpy(outputs.num_accepted),
        torch.from_numpy(outputs.num_accepted + (outputs.error == RowError.NONE)),
        torch.from_numpy(last_stream),
        torch.from_numpy(outputs.margin),
        torch.from_numpy(outputs.error),
        int(outputs.num_broken.sum()),
        weights,
    )


def _refuse_on_device(**asked: Any) -> None:
    for name, value in asked.items():
        if value:
            raise ValueError(
                f"{name} is not built for tensors on a GPU; verify .cpu() tensors with it"
            )


def _implementation(rule: Rule, is_cpu: bool) -> Callable[..., Any]:
    if rule == "block":
        if is_cpu:
            from fairdraft.ops.cpu.block import verify_block_cpu as implementation
        else:
            from fairdraft.ops.block import verify_block_reference as implementation
    elif is_cpu:
        from fairdraft.ops.cpu.verify import verify_cpu as implementation
    else:
        from fairdraft.ops.chain import verify_reference as implementation
    return implementation


def _chain_inputs(target_logits, draft_token_ids, num_draft_tokens, draft_logits, temps, marks, at):
    target = rows.as_rows("target_logits", target_logits, dims=3)
    count, num_rows, vocab_size = target.shape
    depth = num_rows - 1
    token_ids = _token_ids(draft_token_ids, count, depth)
    num_drafts = _num_drafts(num_draft_tokens, token_ids)
    target_scale = draft_scale = rows.temperature_scales("temperature", temps[0], count)
    if temps[1] is not None:
        draft_scale = rows.temperature_scales("draft_temperature", temps[1], count)
    draft = _draft_rows(draft_logits, (count, depth, vocab_size))
    point_mass, forbidden = marks
    is_point_mass = np.full(count, draft_logits is None)
    if point_mass is not None:
        is_point_mass |= rows.as_vector("point_mass", point_mass, count, np.bool_)
    # a greedy drafter is a point mass, whatever it was greedy about
    is_point_mass |= draft_scale == 0
    is_forbidden = (token_ids < 0) | (token_ids >= vocab_size)
    if forbidden is not None:
        check_forbidden(forbidden, (count, depth))
        is_forbidden |= np.asarray(forbidden, np.bool_)
    accept_at, final_at = _addresses(at, num_drafts, depth)
    return ChainInputs(
        target,
        draft,
        token_ids,
        num_drafts,
        target_scale,
        draft_scale,
        is_point_mass,
        is_forbidden,
        accept_at,
        final_at,
    )


def _token_ids(draft_token_ids: Tensor, count: int, depth: int) -> np.ndarray:
    array = np.asarray(draft_token_ids)
    if array.shape != (count, depth) or array.dtype.kind not in "iu":
        raise ValueError(
            f"draft_token_ids has shape {array.shape} and dtype {array.dtype}; target_logits of "
            f"{depth + 1} rows need int64 {(count, depth)}"
        )
    return np.ascontiguousarray(array, np.int64)


def _num_drafts(num_draft_tokens: Any, token_ids: np.ndarray) -> np.ndarray:
    count, depth = token_ids.shape
    given = rows.as_vector("num_draft_tokens", num_draft_tokens, count, np.int64)
    check_counts(given, depth)
    is_absent = token_ids == PLACEHOLDER_TOKEN_ID
    if not is_absent.any():
        return given
    first_absent = np.where(is_absent.any(1), is_absent.argmax(1), depth)
    return np.minimum(given, first_absent)


def _draft_rows(
    draft_logits: Tensor | SparseLogits | None, shape: tuple[int, int, int]
) -> np.ndarray:
    if draft_logits is None:
        return np.empty((0, 0, shape[2]), np.float32)
    if isinstance(draft_logits, SparseLogits):
        return _dense_rows(draft_logits, shape)
    draft = rows.as_rows("draft_logits", draft_logits, dims=3)
    if draft.shape != shape:
        raise ValueError(f"draft_logits has shape {draft.shape}; target_logits need {shape}")
    return draft


def _dense_rows(sparse: SparseLogits, shape: tuple[int, int, int]) -> np.ndarray:
    logits = rows.as_rows("draft_logits.logits", sparse.logits, dims=3)
    ids = np.asarray(sparse.token_ids)
    check_candidates(ids.shape, logits.shape, shape)
    if ids.size and (ids.max() >= shape[2] or ids.min() < PLACEHOLDER_TOKEN_ID):
        bad = ids[(ids >= shape[2]) | (ids < PLACEHOLDER_TOKEN_ID)][0]
        raise ValueError(f"draft_logits has candidate {bad} outside a vocabulary of {shape[2]}")
    ordered = np.sort(ids, axis=-1)
    if ((ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)).any():
        raise ValueError("draft_logits names a candidate twice in one row; merge it first")
    dense = np.full((*shape[:2], shape[2] + 1), -np.inf, np.float32)
    np.put_along_axis(dense, np.where(ids < 0, shape[2], ids), logits, axis=-1)
    return np.ascontiguousarray(dense[..., :-1])


def _addresses(at, num_drafts: np.ndarray, depth: int) -> tuple[noise.Address, noise.Address]:
    key, anchor, sample = at
    count = len(num_drafts)
    keys = as_keys(key)
    if keys.shape not in ((), (count,)):
        raise ValueError(f"key has shape {keys.shape}; give a scalar or one key a row ({count})")
    keys = keys.reshape(-1, 1)
    anchors = rows.as_vector("anchor", anchor, count, np.int64)[:, None]
    if not isinstance(sample, int):
        sample = rows.as_vector("sample", sample, count, np.int64)[:, None]
    if not depth:
        final_at = noise.address(Stream.TARGET, key=keys, position=anchors, sample=sample)
        return final_at[:0], final_at
    nodes, offsets = _columns(depth)
    streams = np.full((count, len(nodes)), int(Stream.ACCEPT))
    is_inside = offsets[depth:] < num_drafts[:, None]
    streams[:, depth:] = np.where(is_inside, int(Stream.RESIDUAL), int(Stream.BONUS))
    positions = anchors + offsets
    if not num_drafts.all():
        is_plain = num_drafts == 0
        streams[is_plain, depth:] = Stream.TARGET
        anchors, nodes = (
            np.where(is_plain[:, None], 0, anchors),
            np.where(is_plain[:, None], 0, nodes),
        )
    # one call names everything: on a few rows calls cost more than what they compute
    at = noise.address(
        streams, key=keys, position=positions, anchor=anchors, node=nodes, sample=sample
    )
    key, counter = at.key.reshape(count, -1), at.counter.reshape(count, -1, 4)
    return (
        _joined(key[:, :depth], counter[:, :depth]),
        _joined(key[:, depth:], counter[:, depth:]),
    )


@cache
def _columns(depth: int) -> tuple[np.ndarray, np.ndarray]:
    """Node and position, less the anchor, of the K tests and then of the K + 1 last tokens."""
    drafts, rows_ = np.arange(depth), np.arange(depth + 1)
    return np.concatenate([drafts + 1, rows_]), np.concatenate([drafts, rows_])


def _joined(key: np.ndarray, counter: np.ndarray) -> noise.Address:
    contiguous = np.ascontiguousarray(counter).reshape(-1, 4)
    return noise.Address(np.ascontiguousarray(key).reshape(-1), contiguous)


def _empty_outputs(count: int, num_rows: int) -> ChainOutputs:
    return ChainOutputs(
        np.full((count, num_rows), PLACEHOLDER_TOKEN_ID, np.int64),
        np.zeros(count, np.int64),
        np.zeros((count, num_rows)),
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
    )


def _last_stream(inputs: ChainInputs, outputs: ChainOutputs) -> np.ndarray:
    is_bonus = outputs.num_accepted == inputs.num_drafts
    stream = np.where(is_bonus, int(Stream.BONUS), int(Stream.RESIDUAL))
    stream[inputs.num_drafts == 0] = Stream.TARGET
    stream[outputs.error != RowError.NONE] = 0
    return stream


def _weights(inputs: ChainInputs, rule: Rule, is_cpu: bool) -> DecisionWeights:
    if rule == "block":
        if is_cpu:
            from fairdraft.ops.cpu.block import block_weights_cpu as fill
        else:
            from fairdraft.ops.block import block_weights_reference as fill
    elif is_cpu:
        from fairdraft.ops.cpu.verify import decision_weights_cpu as fill
    else:
        from fairdraft.ops.chain import decision_weights_reference as fill
    count, num_rows, vocab_size = inputs.target.shape
    accept = np.zeros((count, num_rows - 1))
    law = np.zeros((count, num_rows, vocab_size))
    fill(inputs, accept, law)
    end = rules.ends_by_first_failure(accept)
    if rule == "block":
        end = np.where(inputs.is_matched[:, None], end, rules.ends_by_last_pass(accept))
    return DecisionWeights(torch.from_numpy(accept), torch.from_numpy(law), torch.from_numpy(end))
