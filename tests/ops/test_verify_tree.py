"""`ops.verify_tree`: the CPU form equals the reference; a chain is rule `token`; bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fairdraft import noise, ops
from fairdraft.noise import Stream, Trace
from fairdraft.ops import PLACEHOLDER_TOKEN_ID, Impl, RowError
from tests.ops.rows import IMPLS, random_logits
from tests.ops.test_verify import OUTPUTS, random_call

#: root with three children, two below the first, one below the second, one two levels down
PARENTS = np.array([0, 0, 0, 1, 1, 2, 4])
SIZE = len(PARENTS)


def random_tree(count: int, vocab_size: int, kind: str, seed: int) -> dict[str, Any]:
    """A batch of ragged trees, siblings without replacement, with marks and greedy rows."""
    rng = np.random.default_rng(seed)
    target = random_logits((count, SIZE + 1, vocab_size), seed).float()
    jitter = rng.normal(size=(count, SIZE + 1, vocab_size)) * rng.choice([0, 0.3, 2], (count, 1, 1))
    group = (target + torch.from_numpy(jitter)).float().nan_to_num()
    draft = group[:, PARENTS].contiguous()
    ids = np.zeros((count, SIZE), np.int64)
    for b in range(count):
        for parent in range(SIZE + 1):
            children = np.flatnonzero(parent == PARENTS)
            order = np.argsort(-group[b, parent].numpy() - rng.gumbel(size=vocab_size))
            ids[b, children] = order[np.arange(len(children)) % vocab_size]
    call: dict[str, Any] = {
        "target_logits": target,
        "draft_token_ids": torch.from_numpy(ids),
        "parents": np.tile(PARENTS, (count, 1)),
        "num_draft_tokens": torch.from_numpy(rng.integers(0, SIZE + 1, count)),
        "draft_logits": None if kind == "point" else draft,
        "key": rng.integers(0, 1 << 64, count, dtype=np.uint64),
        "anchor": rng.integers(0, 1_000, count),
        "sample": rng.integers(0, 4, count),
        "temperature": rng.choice([0, 0.5, 1, 2], count),
        "forbidden": torch.from_numpy(rng.random((count, SIZE)) < 0.1),
    }
    if kind == "mixed":
        call["point_mass"] = torch.from_numpy(rng.random(count) < 0.5)
    call["draft_token_ids"][3, 0], call["draft_token_ids"][4, 1] = vocab_size + 5, -1
    call["target_logits"][5, 1, 0] = float("nan")
    return call


@pytest.mark.parametrize("kind", ["dense", "point", "mixed"])
@pytest.mark.parametrize("vocab_size", [1, 3, 63, 1_025])
def test_cpu_equals_reference(vocab_size: int, kind: str) -> None:
    call: dict[str, Any] = random_tree(16, vocab_size, kind, seed=vocab_size)
    reference = ops.verify_tree(**call, impl="reference", return_weights=True)
    fast = ops.verify_tree(**call, impl="cpu", return_weights=True)
    for name in (*OUTPUTS, "path"):
        assert torch.equal(getattr(fast, name), getattr(reference, name)), name
    assert fast.num_broken == reference.num_broken
    assert fast.weights is not None and reference.weights is not None
    for name in ("accept_probability", "next_law", "end_probability"):
        got, expected = getattr(fast.weights, name), getattr(reference.weights, name)
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-15, equal_nan=True)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("kind", ["dense", "sparse", "point", "mixed"])
@pytest.mark.parametrize("depth", [0, 1, 4])
def test_a_chain_is_decided_as_by_rule_token(depth: int, kind: str, impl: Impl) -> None:
    """Addresses, arithmetic and so tokens and margins are the same bits."""
    call: dict[str, Any] = random_call(24, depth, 70, kind, seed=depth) | {"impl": impl}
    chain = ops.verify_chain(**call, return_weights=True)
    tree = ops.verify_tree(**call, parents=np.arange(depth), return_weights=True)
    assert depth == 0 or int(chain.num_accepted_tokens.sum()) > 0
    width = tree.token_ids.shape[1]
    assert int(chain.num_accepted_tokens.max()) < width <= depth + 1
    for name in OUTPUTS:
        expected = getattr(chain, name)
        expected = expected[:, :width] if expected.dim() == 2 else expected
        assert torch.equal(getattr(tree, name), expected), name
    assert tree.num_broken == chain.num_broken
    for b, accepted in enumerate(tree.num_accepted_tokens.tolist()):
        assert tree.path[b, : accepted + 1].tolist() == list(range(accepted + 1))
    assert tree.weights is not None and chain.weights is not None
    is_read = chain.weights.end_probability > 0
    torch.testing.assert_close(tree.weights.end_probability, chain.weights.end_probability)
    got, expected = tree.weights.next_law[is_read], chain.weights.next_law[is_read]
    torch.testing.assert_close(got, expected, equal_nan=True)


@pytest.mark.parametrize("impl", IMPLS)
def test_rows_of_a_batch_do_not_touch_each_other(impl: Impl) -> None:
    call: dict[str, Any] = random_tree(12, 70, "mixed", seed=2)
    whole = ops.verify_tree(**call, impl=impl)
    for b in range(12):
        one: dict[str, Any] = {name: value[b : b + 1] for name, value in call.items()}
        alone = ops.verify_tree(**one, impl=impl)
        width = alone.token_ids.shape[1]
        assert torch.equal(alone.token_ids[0], whole.token_ids[b, :width])
        assert torch.equal(alone.path[0], whole.path[b, :width])


@pytest.mark.parametrize("impl", IMPLS)
def test_the_path_leads_to_the_tokens(impl: Impl) -> None:
    """Each accepted token is its node's, and each node a child of the one before."""
    call: dict[str, Any] = random_tree(40, 6, "mixed", seed=3)
    got = ops.verify_tree(**call, impl=impl)
    assert (got.num_accepted_tokens > 1).any()
    assert (got.path.amax(1) > got.num_accepted_tokens).any()
    for b, accepted in enumerate(got.num_accepted_tokens.tolist()):
        path = got.path[b].tolist()
        assert path[0] == 0 and path[accepted + 1 :] == [-1] * (len(path) - accepted - 1)
        for depth in range(accepted):
            node = path[depth + 1]
            assert PARENTS[node - 1] == path[depth]
            assert call["draft_token_ids"][b, node - 1] == got.token_ids[b, depth]
        end = int(got.num_emitted_tokens[b])
        assert (got.token_ids[b, end:] == PLACEHOLDER_TOKEN_ID).all()


@pytest.mark.parametrize("impl", IMPLS)
def test_absent_nodes_take_what_is_below_them_along(impl: Impl) -> None:
    """-1 with junk below equals a tree without these nodes, at the addresses of the others."""
    call: dict[str, Any] = random_tree(24, 5, "dense", seed=4) | {"forbidden": None, "impl": impl}
    call["num_draft_tokens"] = torch.full((24,), SIZE)
    call["target_logits"].nan_to_num_()
    call["draft_token_ids"][:, 0] = PLACEHOLDER_TOKEN_ID
    marked = ops.verify_tree(**call)
    below = [3, 4, 6]
    call["draft_token_ids"][:, below] = 12_345
    call["target_logits"][:, [1, 4, 5, 7]] = float("nan")
    call["draft_logits"][:, [0, *below]] = float("nan")
    again = ops.verify_tree(**call)
    for name in (*OUTPUTS, "path"):
        assert torch.equal(getattr(marked, name), getattr(again, name)), name
    assert not torch.isin(marked.path, torch.tensor([1, 4, 5, 7])).any()


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize(
    ("value", "error"),
    [(float("nan"), RowError.NAN), (float("inf"), RowError.INFINITE), (None, RowError.EMPTY)],
)
def test_a_bad_row_is_an_error_where_the_walk_reads_it(
    impl: Impl, value: float | None, error: RowError
) -> None:
    call: dict[str, Any] = random_tree(60, 5, "mixed", seed=5) | {"forbidden": None}
    call["target_logits"].nan_to_num_()
    clean = ops.verify_tree(**call, impl=impl)
    call["target_logits"][:, 1] = float("-inf")
    if value is not None:
        call["target_logits"][:, 1, 0] = value
    got = ops.verify_tree(**call, impl=impl)
    is_read = (clean.path == 1).any(1)
    assert is_read.any() and not is_read.all()
    assert (got.error[is_read] == error).all() and not got.error[~is_read].any()
    assert (got.num_emitted_tokens[is_read] == 1).all()
    assert torch.equal(got.token_ids[~is_read], clean.token_ids[~is_read])


def test_a_result_is_as_wide_as_it_is_asked_to_be() -> None:
    call: dict[str, Any] = random_tree(12, 5, "dense", seed=9)
    narrow, wide = ops.verify_tree(**call), ops.verify_tree(**call, max_depth=6)
    width = narrow.path.shape[1]
    for name in ("token_ids", "path", "margin"):
        got, expected = getattr(wide, name), getattr(narrow, name)
        assert got.shape == (12, 7) and torch.equal(got[:, :width], expected)
        assert (got[:, width:] == (0 if name == "margin" else -1)).all()


@pytest.mark.parametrize("impl", IMPLS)
def test_a_sibling_that_cannot_have_been_drawn_is_refused(impl: Impl) -> None:
    """One token has q > 0, so a second sibling breaks the contract: an error, never a token."""
    target = torch.zeros(1, 3, 4)
    draft = torch.full((1, 2, 4), float("-inf"))
    draft[..., 1] = 0.0
    target[:, 0, 1] = float("-inf")
    got = ops.verify_tree(
        target,
        torch.tensor([[1, 2]]),
        [0, 0],
        [2],
        draft_logits=draft,
        key=1,
        anchor=5,
        impl=impl,
    )
    assert got.error.tolist() == [RowError.DRAFT] and not got.num_emitted_tokens.any()


@pytest.mark.parametrize("impl", IMPLS)
def test_an_impossible_sibling_is_counted(impl: Impl) -> None:
    """The same token twice: the second has q = 0 once the first is gone."""
    call: dict[str, Any] = {"draft_logits": torch.zeros(1, 2, 4), "key": 1, "anchor": 5}
    target = torch.zeros(1, 3, 4)
    target[:, 0, 1] = float("-inf")
    got = ops.verify_tree(target, torch.tensor([[1, 1]]), [0, 0], [2], **call, impl=impl)
    assert got.num_broken == 1 and got.num_accepted_tokens.tolist() == [0]
    assert got.token_ids[0, 0] != 1


def test_every_address_is_named_once_and_by_node() -> None:
    call: dict[str, Any] = random_tree(40, 6, "mixed", seed=6) | {
        "key": np.arange(40, dtype=np.uint64)
    }
    trace = Trace()
    got = ops.verify_tree(**call, trace=trace)
    ops.verify_tree(**call, trace=trace)
    trace.check()
    depths = np.array([0, 1, 1, 1, 2, 2, 2, 3])
    seen = set()
    for use in trace:
        seen.add(use.stream)
        if use.stream == Stream.TARGET:
            assert (use.node, use.anchor) == (0, 0)
            continue
        is_test = use.stream == Stream.ACCEPT
        assert use.position == use.anchor + depths[use.node] - is_test
        if not is_test:
            assert use.node in got.path[use.key].tolist()
    assert seen == {Stream.TARGET, Stream.ACCEPT, Stream.RESIDUAL, Stream.BONUS}
    call["target_logits"] += torch.arange(6)
    ops.verify_tree(**call, trace=trace)
    assert trace.collisions


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parents": np.array([0, 0, 3, 1, 1, 2, 4])}, r"parents\[0, 2\] = 3.*0\.\.2"),
        ({"parents": np.array([-1, 0, 0, 1, 1, 2, 4])}, r"parents\[0, 0\] = -1"),
        ({"parents": np.array([0, 0])}, r"parents has shape \(2,\)"),
        ({"parents": PARENTS.astype(float)}, "dtype float64"),
        ({"num_draft_tokens": torch.full((12,), SIZE + 1)}, "num_draft_tokens = 8 is outside"),
        ({"draft_token_ids": torch.zeros(12, 3, dtype=torch.int64)}, "draft_token_ids has shape"),
        ({"draft_logits": torch.zeros(12, 3, 70)}, "draft_logits has shape"),
        ({"temperature": -1.0}, "temperature = -1.0 is not in"),
        ({"forbidden": torch.zeros(12, 3, dtype=torch.bool)}, "forbidden has shape"),
        ({"key": np.zeros(5, np.uint64)}, "key has shape"),
        ({"max_depth": 2}, "a present node is 3 deep, deeper than max_depth = 2"),
        ({"arithmetic": "fast", "impl": "reference"}, "computes 'portable' only"),
    ],
)
def test_bad_input_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    call: dict[str, Any] = random_tree(12, 70, "dense", seed=7)
    call["num_draft_tokens"] = torch.full((12,), SIZE)
    with pytest.raises(ValueError, match=message):
        ops.verify_tree(**(call | change))


@pytest.mark.parametrize("impl", IMPLS)
def test_greedy_rows_follow_the_best_token(impl: Impl) -> None:
    """Whatever the siblings are, a greedy row's text is the target's argmax."""
    call: dict[str, Any] = random_tree(40, 4, "dense", seed=8) | {
        "temperature": 0.0,
        "forbidden": None,
    }
    call["target_logits"].nan_to_num_()
    got = ops.verify_tree(**call, impl=impl)
    assert int(got.num_accepted_tokens.sum()) > 20
    best = call["target_logits"].argmax(-1)
    for b, end in enumerate(got.num_emitted_tokens.tolist()):
        assert torch.equal(got.token_ids[b, :end], best[b, got.path[b, :end]])


def test_siblings_drawn_one_by_one_follow_sampling_without_replacement() -> None:
    """What a drafter does: each sibling at its own node, its elders at -inf. Pairs, exactly.

    Not statistical in its law (that is the race's); here only that no sibling repeats another, and
    that addresses differ by node alone.
    """
    law = torch.tensor([[0.5, 0.3, 0.2]]).log().repeat(500, 1)
    key = np.arange(500, dtype=np.uint64)
    drawn: list[torch.Tensor] = []
    for node in (1, 2, 3):
        masked = law.clone()
        for ids in drawn:
            masked[torch.arange(500), ids] = float("-inf")
        at = noise.address(Stream.DRAFT, key=key, position=9, anchor=9, node=node)
        drawn.append(ops.sample(masked, at).token_ids)
    assert torch.stack(drawn, 1).sort(1).values.eq(torch.arange(3)).all()
