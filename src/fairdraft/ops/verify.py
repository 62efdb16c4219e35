"""Verification of a chain of drafts in one call: accept a prefix, sample one token more.

Axes: B rows, K drafts, V vocabulary, C candidates of a sparse draft law; N rows and D drafts of all
requests, where they lie flat.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args, overload

import numpy as np
import torch
from torch import Tensor

from fairdraft.noise import Stream, Trace
from fairdraft.ops import chain_trace, rows
from fairdraft.ops.chain_addresses import chain_addresses
from fairdraft.ops.chain_inputs import (
    ChainInputs,
    ChainOutputs,
    SparseLogits,
    check_forbidden,
    refuse_laws,
)
from fairdraft.ops.chain_rows import draft_rows, num_drafts_of, target_rows, token_ids_of
from fairdraft.ops.dispatch import Arithmetic, Impl, device_of, resolve_arithmetic, resolve_impl
from fairdraft.ops.flat_rows import Layout, padded
from fairdraft.ops.lossy import LOSSY_RULES, LossyRule, lossy_name
from fairdraft.ops.rows import PLACEHOLDER_TOKEN_ID, RowError
from fairdraft.ops.sample import Method, TileStats, check_method, refuse_traced
from fairdraft.ops.verdict import Verdict
from fairdraft.ops.walks import walk_of, weights_of

if TYPE_CHECKING:
    from fairdraft.ops.triton.workspace import Workspace

#: rules that compare the laws of target and draft
Rule = Literal["token", "block"]
ExactRule = Literal["token", "block", "common_noise"]
AnyRule = ExactRule | LossyRule
_RULES: tuple[str, ...] = get_args(ExactRule)
_TARGET, _RESIDUAL, _BONUS = int(Stream.TARGET), int(Stream.RESIDUAL), int(Stream.BONUS)


@overload
def verify_chain(
    target_logits: Tensor,
    draft_token_ids: Tensor,
    num_draft_tokens: Any = None,
    *,
    draft_logits: Tensor | SparseLogits | None,
    key: Any,
    anchor: Any,
    sample: Any = 0,
    temperature: Any = 1.0,
    draft_temperature: Any = None,
    point_mass: Tensor | None = None,
    forbidden: Tensor | None = None,
    cu_num_logits: Any = None,
    cu_num_draft_tokens: Any = None,
    max_spec_len: int | None = None,
    idx_mapping: Any = None,
    rule: Rule | LossyRule = "token",
    method: Method = "race",
    return_weights: bool = False,
    impl: Impl = "auto",
    arithmetic: Arithmetic = "auto",
    draft_stats: TileStats | None = None,
    trace: Trace | None = None,
    workspace: Workspace | None = None,
    validate: bool = True,
) -> Verdict: ...
@overload
def verify_chain(
    target_logits: Tensor,
    draft_token_ids: Tensor,
    num_draft_tokens: Any = None,
    *,
    draft_logits: None,
    key: Any,
    anchor: Any,
    sample: Any = 0,
    temperature: Any = 1.0,
    forbidden: Tensor | None = None,
    cu_num_logits: Any = None,
    cu_num_draft_tokens: Any = None,
    max_spec_len: int | None = None,
    rule: Literal["common_noise"],
    method: Method = "race",
    impl: Impl = "auto",
    arithmetic: Arithmetic = "auto",
    trace: Trace | None = None,
    workspace: Workspace | None = None,
    validate: bool = True,
) -> Verdict: ...
def verify_chain(
    target_logits: Tensor,
    draft_token_ids: Tensor,
    num_draft_tokens: Any = None,
    *,
    draft_logits: Tensor | SparseLogits | None,
    key: Any,
    anchor: Any,
    sample: Any = 0,
    temperature: Any = 1.0,
    draft_temperature: Any = None,
    point_mass: Tensor | None = None,
    forbidden: Tensor | None = None,
    cu_num_logits: Any = None,
    cu_num_draft_tokens: Any = None,
    max_spec_len: int | None = None,
    idx_mapping: Any = None,
    rule: AnyRule = "token",
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

    Flat calls: with `cu_num_logits` or `cu_num_draft_tokens`, target_logits are [N, V], the K_i + 1
    rows of each request one after the other, and draft_token_ids and forbidden are [D]: D = N - B,
    drafts alone, or D = N, laid out as the rows are with an entry that is not read before each
    request's drafts (vLLM's `draft_sampled`). draft_logits and draft_stats have a row for each
    entry, or stay [B, K, V]. Tokens are those of the same requests padded, and no logits are
    copied.

    Args:
        target_logits: Floating point [B, K + 1, V]; row r is the law after r drafts. Filtered
            (-inf) but not divided by temperature.
        draft_token_ids: int64 [B, K]. -1 ends a row's drafts (absent); any other id outside the
            vocabulary is forbidden. A sampled one needs its q there: pad both logits to hold it,
            or it counts as broken.
        num_draft_tokens: int64 [B], 0..K present drafts of each row; None in a flat call, whose
            offsets say it.
        draft_logits: [B, K, V] exactly as they were sampled ([D, V] if flat, [S, K, V] with
            `idx_mapping`), SparseLogits, or None: every draft is a point mass.
        key, anchor, sample: Request key (uint64), index of the first undecided token and sample
            index, scalar or [B]: they name the noise.
        temperature: Scalar or [B]; below 1e-5 the row is greedy, whatever its drafts are.
        draft_temperature: What drafts were sampled with; None for `temperature`.
        point_mass: bool [B], rows whose drafts are point masses in spite of `draft_logits`.
        forbidden: bool [B, K], drafts with p = 0 (a grammar, say). A forbidden draft keeps its q,
            is rejected, and rows after it are not read.
        cu_num_logits: Flat calls: int [B + 1], 0 and then the rows of requests up to each one.
        cu_num_draft_tokens: The same as int [B]: the drafts of requests up to each one.
        max_spec_len: Flat calls: K, the width of the result. None for that of draft_logits
            [B, K, V], or for the longest request where offsets are on the host.
        idx_mapping: int [B], where draft_logits are slots [S, K, V]: the slot of each request.
        rule: "token" (Leviathan et al. 2023, algorithm 1) tests draft by draft; "block" (Sun et
            al. 2024, algorithm 2) tests whole prefixes and accepts at least as many drafts.
            "common_noise" draws the target's own token at each row with the noise of plain
            decoding, and a draft stands if it is that token. It takes no law of the drafts: they
            may be guessed with the same noise (`CommonSampler`), or in any other way.
        method: How tokens are drawn: "race", or "gumbel" (a number for every token); see
            `ops.sample`. Up to 512 ids both give the same tokens.
        return_weights: Also return the noise-free decision weights (for tests: B (K+1) V float64).
        impl: "auto", "reference", "cpu" or "triton"; refused if it cannot run. Tensors on a GPU
            are verified there, and the call does not wait for it.
        arithmetic: As in `ops.sample`.
        draft_stats: Statistics of the drafts' rows from their own sampling, at draft_temperature,
            B K rows in order; q's rows are then read only where a draft was rejected (GPU).
        trace: Records every address used with a digest of what was tested or raced (CPU).
        workspace, validate: As in `ops.sample` (GPU).

    Returns:
        Verdict, on the device of the logits. A row that the walk reads and that holds NaN, +inf or
        no token is an error of its request: accepted tokens stand, nothing follows them. Rule
        "block" reads every row up to a draft that cannot stand before it accepts any, so there
        nothing is emitted.

    Raises:
        ValueError: If a shape, dtype, offset or parameter is out of range. What only a device can
            see is an error of its request instead.

    Noise:
        ACCEPT at position anchor + i, node i + 1 for each draft tested; RESIDUAL at anchor + r,
        node r after a rejection at row r, or BONUS after the last draft; TARGET at anchor 0 for
        rows without drafts. Point masses race at each row walked and consume no ACCEPT. Rule
        "block" makes its tests from the last draft back to the one that stands. Rule
        "common_noise" races at each row walked, TARGET at position anchor + r, anchor 0, node 0.
        Lossy rules test point masses and greedy rows too, and race where a draft is rejected.

    Law:
        If draft i was drawn from softmax(draft_logits_i / draft_temperature) with other noise,
        every emitted token follows softmax(target_logits / temperature) at its row, exactly
        given the logits (`docs/derivation.md`). Under "common_noise" that holds for drafts from
        anywhere, and the tokens are those of plain decoding (`docs/rules.md`). Under a lossy rule
        it does not hold: its class says what law there is in place of it.
    """
    at, temperatures = (key, anchor, sample), (temperature, draft_temperature)
    marks = (point_mass, forbidden)
    layout = Layout(cu_num_logits, cu_num_draft_tokens, max_spec_len, idx_mapping)
    given = (target_logits, draft_token_ids, num_draft_tokens, draft_logits)
    _check_rule(rule, return_weights)
    if rule == "common_noise":
        refuse_laws(
            draft_logits=draft_logits,
            draft_temperature=draft_temperature,
            point_mass=point_mass,
            idx_mapping=idx_mapping,
            draft_stats=draft_stats,
        )
    if torch.compiler.is_compiling():
        from fairdraft.ops.custom import traced_verify

        other = None if method == "race" else method
        refuse_traced(method=other, return_weights=return_weights, trace=trace, workspace=workspace)
        refuse_traced(**{f"rule {lossy_name(rule)!r}": isinstance(rule, LossyRule)})
        named: dict[str, Any] = {"rule": rule, "impl": impl, "arithmetic": arithmetic}
        return traced_verify(given, at, temperatures, marks, layout, draft_stats, **named)
    check_method(method)
    backend = resolve_impl(impl, device_of(target_logits))
    arithmetic = resolve_arithmetic(arithmetic, backend)
    if backend == "triton":
        from fairdraft.ops.triton.verification import verify_on_device

        refuse_on_device(
            method=method != "race", return_weights=return_weights, trace=trace is not None
        )
        return verify_on_device(
            *given[:3],
            draft_logits=draft_logits,
            at=at,
            temperatures=temperatures,
            marks=marks,
            layout=layout,
            rule=rule,
            arithmetic=arithmetic,
            draft_stats=draft_stats,
            workspace=workspace,
            validate=validate,
        )
    if draft_stats is not None or workspace is not None:
        raise ValueError("draft_stats and workspace are for tensors on a GPU; leave them out")
    is_common = rule == "common_noise"
    inputs = _chain_inputs(*given, temperatures, marks, at, layout, is_common)
    if method != "race":
        inputs = inputs._replace(method=method)
    return _verify_on_host(inputs, rule, backend == "cpu", trace, return_weights)


def _check_rule(rule: Any, return_weights: bool) -> None:
    """Refuses an unknown rule, a lossy one by its name, and weights that do not exist."""
    if isinstance(rule, LossyRule):
        return
    if rule in LOSSY_RULES:
        raise ValueError(
            f"rule = {rule!r} is lossy, so a name does not choose it: pass "
            f"ops.{LOSSY_RULES[rule].__name__}(...), whose text does not follow the target"
        )
    if rule not in _RULES:
        names = ", ".join(_RULES)
        raise ValueError(
            f"rule = {rule!r} is no rule for chains: use one of {names}; trees go to "
            "ops.verify_tree"
        )
    if return_weights and rule == "common_noise":
        raise ValueError(
            "return_weights: under rule 'common_noise' a draft may share the noise that decides "
            "on it, so there are no weights without noise; `rules.match_probability` has the chance"
        )


def _verify_on_host(
    inputs: ChainInputs, rule: AnyRule, is_cpu: bool, trace: Trace | None, return_weights: bool
) -> Verdict:
    if trace is not None and isinstance(rule, LossyRule):
        raise ValueError(
            f"trace: rule '{rule.name}' is lossy and keeps none; leave one of them out"
        )
    count, num_rows = inputs.target.shape[:2]
    outputs = _empty_outputs(count, num_rows)
    num_tested = walk_of(rule, is_cpu)(inputs, outputs)
    last_stream = _last_stream(inputs, outputs)
    if trace is not None:
        chain_trace.record(trace, inputs, outputs, num_tested)
    weights = weights_of(inputs, rule, is_cpu) if return_weights else None
    num_emitted = outputs.num_accepted + 1
    if np.count_nonzero(outputs.error):
        num_emitted -= outputs.error != RowError.NONE
    return Verdict(
        torch.from_numpy(outputs.token_ids),
        torch.from_numpy(outputs.num_accepted),
        torch.from_numpy(num_emitted),
        torch.from_numpy(last_stream),
        torch.from_numpy(outputs.margin),
        torch.from_numpy(outputs.error),
        sum(outputs.num_broken.tolist()),
        weights,
        lossy_name(rule),
    )


def refuse_on_device(**asked: Any) -> None:
    """Refuses what kernels do not do, by name."""
    for name, value in asked.items():
        if value:
            raise ValueError(
                f"{name} is not built for tensors on a GPU; verify .cpu() tensors with it"
            )


def _chain_inputs(
    target_logits,
    draft_token_ids,
    num_draft_tokens,
    draft_logits,
    temps,
    marks,
    at,
    layout,
    is_common,
):
    target, spans = target_rows(
        target_logits, draft_token_ids, num_draft_tokens, draft_logits, layout
    )
    count, num_rows, vocab_size = target.shape
    shape = (count, num_rows - 1, vocab_size)
    token_ids = token_ids_of(draft_token_ids, shape[:2], spans)
    num_drafts = num_drafts_of(num_draft_tokens, token_ids, spans)
    target_scale = draft_scale = rows.temperature_scales("temperature", temps[0], count)
    if temps[1] is not None:
        draft_scale = rows.temperature_scales("draft_temperature", temps[1], count)
    num_entries = token_ids.size if spans is None else np.asarray(draft_token_ids).size
    draft = draft_rows(draft_logits, shape, num_entries, spans, layout.idx_mapping)
    point_mass, forbidden = marks
    # a greedy drafter is a point mass, whatever it was greedy about
    is_point_mass = draft_scale == 0 if draft_logits is not None else np.ones(count, np.bool_)
    if point_mass is not None:
        is_point_mass |= rows.as_vector("point_mass", point_mass, count, np.bool_)
    is_forbidden = (token_ids < 0) | (token_ids >= vocab_size)
    if forbidden is not None:
        check_forbidden(forbidden, np.shape(draft_token_ids))
        marked = np.asarray(forbidden, np.bool_)
        is_forbidden |= marked if spans is None else padded(marked, spans, shape[1], 0)
    accept_at, final_at = chain_addresses(at, num_drafts, shape[1], is_common=is_common)
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


def _empty_outputs(count: int, num_rows: int) -> ChainOutputs:
    return ChainOutputs(
        np.full((count, num_rows), PLACEHOLDER_TOKEN_ID, np.int64),
        np.zeros(count, np.int64),
        np.zeros((count, num_rows)),
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
    )


def _last_stream(inputs: ChainInputs, outputs: ChainOutputs) -> np.ndarray:
    num_drafts = inputs.num_drafts
    stream = np.where(outputs.num_accepted == num_drafts, _BONUS, _RESIDUAL)
    if np.count_nonzero(num_drafts) < len(num_drafts):
        stream[num_drafts == 0] = _TARGET
    if np.count_nonzero(outputs.error):
        stream[outputs.error != RowError.NONE] = 0
    return stream
