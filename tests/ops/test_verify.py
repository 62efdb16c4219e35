"""`ops.verify_chain`: the CPU form equals the reference with ==; absent, forbidden, bad rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fairdraft import noise, ops
from fairdraft.noise import Stream, Trace
from fairdraft.ops import PLACEHOLDER_TOKEN_ID, Impl, RowError, SparseLogits
from fairdraft.ops.verify import Rule
from tests.ops.rows import IMPLS, random_logits

OUTPUTS = (
    "token_ids",
    "num_accepted_tokens",
    "num_emitted_tokens",
    "last_stream",
    "margin",
    "error",
)
rules = pytest.mark.parametrize("rule", ["token", "block"])


def random_call(count: int, depth: int, vocab_size: int, kind: str, seed: int) -> dict[str, Any]:
    """A batch with ragged drafts, every mark, greedy rows and a bad row."""
    rng = np.random.default_rng(seed)
    target = random_logits((count, depth + 1, vocab_size), seed)
    jitter = rng.normal(size=(count, depth, vocab_size)) * rng.choice([0, 0.3, 2], (count, 1, 1))
    draft = target[:, :depth] + torch.from_numpy(jitter)
    best = draft.argmax(-1).numpy() if depth else np.zeros((count, 0), np.int64)
    chosen = np.where(
        rng.random((count, depth)) < 0.6, best, rng.integers(0, vocab_size, best.shape)
    )
    if depth:
        chosen[3, 0], chosen[4, -1] = vocab_size + 5, PLACEHOLDER_TOKEN_ID
        target[5, depth, 0] = float("nan")
    call: dict[str, Any] = {
        "target_logits": target.float(),
        "draft_token_ids": torch.from_numpy(chosen),
        "num_draft_tokens": torch.from_numpy(rng.integers(0, depth + 1, count)),
        "draft_logits": None if kind == "point" else draft.float(),
        "key": rng.integers(0, 1 << 64, count, dtype=np.uint64),
        "anchor": rng.integers(0, 1_000, count),
        "sample": rng.integers(0, 4, count),
        "temperature": rng.choice([0, 0.5, 1, 2], count),
        "forbidden": torch.from_numpy(rng.random((count, depth)) < 0.1),
    }
    if kind == "mixed":
        call["point_mass"] = torch.from_numpy(rng.random(count) < 0.5)
    if kind == "sparse":
        candidates = np.argsort(rng.random((count, depth, vocab_size)), -1)[
            ..., : vocab_size // 2 + 1
        ]
        call["draft_logits"] = SparseLogits(
            torch.from_numpy(candidates),
            draft.float().gather(-1, torch.from_numpy(candidates)),
        )
    return call


@pytest.mark.parametrize("kind", ["dense", "sparse", "point", "mixed"])
@pytest.mark.parametrize("depth", [0, 1, 4])
@pytest.mark.parametrize("vocab_size", [1, 2, 63, 512, 1_025])
def test_cpu_equals_reference(vocab_size: int, depth: int, kind: str) -> None:
    call = random_call(12, depth, vocab_size, kind, seed=vocab_size + depth)
    reference = ops.verify_chain(**call, impl="reference", return_weights=True)
    fast = ops.verify_chain(**call, impl="cpu", return_weights=True)
    for name in OUTPUTS:
        assert torch.equal(getattr(fast, name), getattr(reference, name)), name
    assert fast.num_broken == reference.num_broken
    assert fast.weights is not None and reference.weights is not None
    for name in ("accept_probability", "next_law"):
        got, expected = getattr(fast.weights, name), getattr(reference.weights, name)
        torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-15, equal_nan=True)


def test_sparse_equals_dense_with_the_rest_masked() -> None:
    call = random_call(12, 3, 600, "sparse", seed=1)
    sparse: SparseLogits = call["draft_logits"]
    dense = torch.full((12, 3, 600), float("-inf")).scatter(-1, sparse.token_ids, sparse.logits)
    expected = ops.verify_chain(**call).token_ids
    call["draft_logits"] = dense
    assert torch.equal(ops.verify_chain(**call).token_ids, expected)


@rules
@pytest.mark.parametrize("kind", ["dense", "mixed"])
@pytest.mark.parametrize("impl", IMPLS)
def test_rows_of_a_batch_do_not_touch_each_other(impl: Impl, kind: str, rule: Rule) -> None:
    """Ragged, greedy, forbidden, foreign and broken rows, and point masses among sampled drafts."""
    call = random_call(12, 3, 70, kind, seed=2)
    whole = ops.verify_chain(**call, rule=rule, impl=impl)
    order = np.random.default_rng(0).permutation(12)
    moved: dict[str, Any] = {name: value[order] for name, value in call.items()}
    shuffled = ops.verify_chain(**moved, rule=rule, impl=impl)
    assert torch.equal(shuffled.token_ids, whole.token_ids[order])
    for b in range(12):
        one: dict[str, Any] = {name: value[b : b + 1] for name, value in call.items()}
        alone = ops.verify_chain(**one, rule=rule, impl=impl)
        assert torch.equal(alone.token_ids[0], whole.token_ids[b])


@rules
@pytest.mark.parametrize("impl", IMPLS)
def test_absent_drafts_end_the_chain(impl: Impl, rule: Rule) -> None:
    """-1 with garbage behind it equals a shorter chain, and is never accepted or emitted."""
    call = random_call(12, 4, 70, "dense", seed=3)
    call["num_draft_tokens"] = torch.full((12,), 4)
    call["forbidden"] = None
    call["draft_token_ids"][:, 2] = PLACEHOLDER_TOKEN_ID
    marked = ops.verify_chain(**call, rule=rule, impl=impl)
    call["num_draft_tokens"] = torch.full((12,), 2)
    call["draft_token_ids"][:, 2:] = 12_345
    shorter = ops.verify_chain(**call, rule=rule, impl=impl)
    for name in OUTPUTS:
        assert torch.equal(getattr(marked, name), getattr(shorter, name)), name
    assert (marked.num_accepted_tokens <= 2).all()


@rules
@pytest.mark.parametrize("impl", IMPLS)
def test_rows_after_a_forbidden_draft_are_not_read(impl: Impl, rule: Rule) -> None:
    call = random_call(12, 4, 70, "dense", seed=4)
    call["num_draft_tokens"] = torch.full((12,), 4)
    call["forbidden"] = torch.zeros(12, 4, dtype=torch.bool)
    call["forbidden"][:, 1] = True
    expected = ops.verify_chain(**call, rule=rule, impl=impl)
    call["target_logits"][:, 2:] = float("nan")
    call["draft_logits"][:, 2:] = float("-inf")
    got = ops.verify_chain(**call, rule=rule, impl=impl)
    assert torch.equal(got.token_ids, expected.token_ids)
    assert not got.error.any() and (got.num_accepted_tokens <= 1).all()
    reached = got.num_accepted_tokens == 1
    emitted = got.token_ids[reached, 1]
    assert (emitted != call["draft_token_ids"][reached, 1]).all()


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize(
    ("value", "error"),
    [(float("nan"), RowError.NAN), (float("inf"), RowError.INFINITE), (None, RowError.EMPTY)],
)
def test_a_bad_row_counts_only_where_the_walk_reads_it(
    impl: Impl, value: float | None, error: RowError
) -> None:
    call = random_call(12, 3, 70, "dense", seed=5)
    call["num_draft_tokens"] = torch.full((12,), 3)
    clean = ops.verify_chain(**call, impl=impl)
    bad = call["target_logits"].clone()
    bad[:, 2] = float("-inf")
    if value is not None:
        bad[:, 2, 7] = value
    call["target_logits"] = bad
    got = ops.verify_chain(**call, impl=impl)
    is_read = clean.num_accepted_tokens >= 2
    assert is_read.any() and not is_read.all()
    assert torch.equal(got.token_ids[~is_read], clean.token_ids[~is_read])
    assert (got.error[is_read] == error).all()
    assert torch.equal(got.num_emitted_tokens[is_read], torch.full((int(is_read.sum()),), 2))
    assert (got.token_ids[is_read, 2:] == PLACEHOLDER_TOKEN_ID).all()


@rules
@pytest.mark.parametrize("impl", IMPLS)
def test_a_bad_draft_row_fails_its_request(impl: Impl, rule: Rule) -> None:
    call = random_call(12, 1, 70, "dense", seed=6)
    call |= {"num_draft_tokens": torch.ones(12, dtype=torch.int64), "temperature": 1.0}
    call["draft_logits"][3, 0, 5] = float("nan")
    got = ops.verify_chain(**call, rule=rule, impl=impl)
    assert got.error[3] == RowError.DRAFT and got.num_emitted_tokens[3] == 0


@rules
@pytest.mark.parametrize("impl", IMPLS)
def test_a_sampled_draft_with_q_zero_is_rejected_and_counted(impl: Impl, rule: Rule) -> None:
    target = torch.zeros(1, 2, 4)
    draft = torch.tensor([[[0.0, float("-inf"), 0.0, 0.0]]])
    got = ops.verify_chain(
        target, torch.tensor([[1]]), [1], draft_logits=draft, key=3, anchor=5, rule=rule, impl=impl
    )
    assert got.num_broken == 1 and got.num_accepted_tokens.tolist() == [0]


@rules
@pytest.mark.parametrize("impl", IMPLS)
def test_a_sampled_draft_outside_the_vocabulary_has_no_q_and_is_counted(
    impl: Impl, rule: Rule
) -> None:
    call: dict[str, Any] = {"key": 3, "anchor": 5, "rule": rule, "impl": impl}
    target, draft_token_ids = torch.zeros(1, 2, 4), torch.tensor([[9]])
    sampled = ops.verify_chain(
        target, draft_token_ids, [1], draft_logits=torch.zeros(1, 1, 4), **call
    )
    assert sampled.num_broken == 1 and sampled.num_accepted_tokens.tolist() == [0]
    point_mass = ops.verify_chain(target, draft_token_ids, [1], draft_logits=None, **call)
    assert point_mass.num_broken == 0 and point_mass.num_accepted_tokens.tolist() == [0]


@rules
@pytest.mark.parametrize("impl", IMPLS)
def test_an_empty_residual_samples_from_the_target(impl: Impl, rule: Rule) -> None:
    """p = q but for a forbidden draft: what is emitted follows p, never the draft."""
    count = 1_500
    target = torch.tensor([0.5, 0.25, 0.25, 0.0]).log().expand(count, 2, 4)
    draft = torch.tensor([0.5, 0.25, 0.25, 1e-7]).log().expand(count, 1, 4)
    key = np.arange(count, dtype=np.uint64)
    got = ops.verify_chain(
        target,
        torch.full((count, 1), 3),
        [1] * count,
        draft_logits=draft,
        key=key,
        anchor=2,
        rule=rule,
        impl=impl,
    )
    counts = torch.bincount(got.token_ids[:, 0], minlength=4)
    assert counts[3] == 0
    # 6 standard deviations of 1,500 draws
    assert (counts[:3] / count - torch.tensor([0.5, 0.25, 0.25])).abs().max() < 0.078


@rules
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("depth", [0, 2])
def test_no_requests_come_to_nothing(impl: Impl, rule: Rule, depth: int) -> None:
    target, ids = torch.zeros(0, depth + 1, 5), torch.zeros(0, depth, dtype=torch.int64)
    none = torch.zeros(0, dtype=torch.int64)
    got = ops.verify_chain(
        target, ids, none, draft_logits=None, key=1, anchor=1, rule=rule, impl=impl
    )
    assert got.token_ids.shape == (0, depth + 1) and len(got.error) == 0


@rules
@pytest.mark.parametrize("impl", IMPLS)
def test_streams_of_the_last_token(impl: Impl, rule: Rule) -> None:
    target = torch.full((4, 3, 8), -40.0)
    target[..., 2] = 40.0
    drafts = torch.tensor([[2, 2], [2, 3], [3, 2], [2, 2]])
    got = ops.verify_chain(
        target, drafts, [2, 2, 2, 0], draft_logits=None, key=1, anchor=4, rule=rule, impl=impl
    )
    expected = [Stream.BONUS, Stream.RESIDUAL, Stream.RESIDUAL, Stream.TARGET]
    assert got.last_stream.tolist() == expected
    assert got.num_accepted_tokens.tolist() == [2, 1, 0, 0]
    assert got.token_ids[3].tolist() == [2, -1, -1]


def test_rows_without_drafts_use_the_plain_address() -> None:
    """A row with K = 0 draws the very token that plain decoding would."""
    logits = random_logits((5, 1, 900), seed=7).float()
    key, anchor, sample = np.arange(5, dtype=np.uint64), np.arange(5) + 10, np.arange(5)
    got = ops.verify_chain(
        logits,
        torch.empty(5, 0, dtype=torch.int64),
        0,
        draft_logits=None,
        key=key,
        anchor=anchor,
        sample=sample,
    )
    at = noise.address(Stream.TARGET, key=key, position=anchor, sample=sample)
    assert torch.equal(got.token_ids[:, 0], ops.sample(logits[:, 0], at).token_ids)


def test_the_trace_records_walked_rows_and_finds_reuse() -> None:
    call = random_call(12, 3, 70, "mixed", seed=8)
    trace = Trace()
    ops.verify_chain(**call, trace=trace)
    ops.verify_chain(**call, trace=trace)
    trace.check()
    assert {use.stream for use in trace} >= {Stream.ACCEPT, Stream.RESIDUAL, Stream.BONUS}
    assert all(
        use.position == use.anchor + use.node - 1 for use in trace if use.stream == Stream.ACCEPT
    )
    call["target_logits"] += torch.arange(70)
    ops.verify_chain(**call, trace=trace)
    assert trace.collisions


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rule": "strict"}, "rule = 'strict' is no rule for chains"),
        ({"num_draft_tokens": [3] * 12}, r"num_draft_tokens = 3 is outside 0\.\.2"),
        ({"num_draft_tokens": [-1] * 12}, "num_draft_tokens = -1"),
        ({"draft_token_ids": torch.zeros(12, 3, dtype=torch.int64)}, "draft_token_ids has shape"),
        ({"draft_token_ids": torch.zeros(12, 2)}, "draft_token_ids has shape .* float32"),
        ({"draft_logits": torch.zeros(12, 2, 71)}, "draft_logits has shape"),
        ({"forbidden": torch.zeros(12, 3, dtype=torch.bool)}, "forbidden has shape"),
        ({"anchor": -1}, "anchor = -1|position = -1"),
        ({"anchor": 1 << 32}, "is outside"),
        ({"sample": 1 << 16}, "sample = 65536"),
        ({"temperature": float("nan")}, "temperature = nan"),
        ({"draft_temperature": -1.0}, "draft_temperature = -1.0"),
        ({"impl": "gpu"}, "impl = 'gpu' is unknown"),
    ],
)
def test_bad_calls_are_refused(change: dict[str, Any], message: str) -> None:
    call = random_call(12, 2, 70, "dense", seed=9)
    call |= change
    with pytest.raises(ValueError, match=message):
        ops.verify_chain(**call)


@pytest.mark.parametrize(
    ("ids", "message"),
    [([[[0, 0]]], "names a candidate twice"), ([[[0, 9]]], "candidate 9 outside")],
)
def test_bad_sparse_laws_are_refused(ids: list, message: str) -> None:
    sparse = SparseLogits(torch.tensor(ids), torch.zeros(1, 1, 2))
    with pytest.raises(ValueError, match=message):
        ops.verify_chain(
            torch.zeros(1, 2, 5), torch.zeros(1, 1, dtype=torch.int64), [1],
            draft_logits=sparse, key=1, anchor=1,
        )  # fmt: skip
