"""Lossy rules of `ops.verify_chain`: chosen by value alone, named in the verdict, same twins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fairdraft import ops
from fairdraft.noise import Trace
from fairdraft.ops import Impl, LossyRule, RowError, Synthetic, Threshold, Typical
from fairdraft.ops.lossy import LOSSY_RULES, certainty
from fairdraft.ops.sample import Method
from tests.ops.rows import IMPLS
from tests.ops.test_verify import OUTPUTS, random_call

LOSSY: dict[str, LossyRule] = {
    "typical": Typical(0.3, 0.6),
    "threshold": Threshold(0.4, 0.7),
    "synthetic": Synthetic((0.8, 0.5, 0.5, 0.1)),
}
lossy = pytest.mark.parametrize("rule", LOSSY.values(), ids=LOSSY)


@lossy
@pytest.mark.parametrize("kind", ["sparse", "mixed"])
@pytest.mark.parametrize(("vocab_size", "method"), [(1, "race"), (63, "gumbel"), (1_025, "race")])
def test_cpu_equals_reference(vocab_size: int, method: Method, kind: str, rule: LossyRule) -> None:
    call: dict[str, Any] = random_call(12, 4, vocab_size, kind, seed=vocab_size)
    call |= {"rule": rule, "method": method}
    reference = ops.verify_chain(**call, impl="reference", return_weights=True)
    fast = ops.verify_chain(**call, impl="cpu", return_weights=True)
    for name in OUTPUTS:
        assert torch.equal(getattr(fast, name), getattr(reference, name)), name
    assert fast.weights is not None and reference.weights is not None
    for name in ("accept_probability", "next_law"):
        got, expected = getattr(fast.weights, name), getattr(reference.weights, name)
        torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-15, equal_nan=True)
    assert fast.lossy == reference.lossy == rule.name
    assert vocab_size == 1 or len(set(fast.num_accepted_tokens.tolist())) > 1


def test_exact_rules_are_named_nothing() -> None:
    call = random_call(4 + 2, 2, 9, "dense", seed=1)
    assert ops.verify_chain(**call).lossy is None
    assert ops.verify_chain(**call, rule="block").lossy is None


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("name", ["typical", "threshold"])
def test_greedy_rows_keep_the_text_of_plain_decoding(name: str, impl: Impl) -> None:
    call = random_call(24, 4, 70, "dense", seed=3)
    call["temperature"] = 0.0
    expected = ops.verify_chain(**call, impl=impl)
    got = ops.verify_chain(**call, rule=LOSSY[name], impl=impl)
    assert torch.equal(got.token_ids, expected.token_ids)
    assert torch.equal(got.error, expected.error)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_synthetic_drafts_stand_whatever_the_laws(temperature: float, impl: Impl) -> None:
    """Rates of 1 and 0 decide without noise; in the middle, greedy and sampled rows stand alike."""
    target = torch.randn(100, 4, 20, generator=torch.Generator().manual_seed(0))
    call: dict[str, Any] = {
        "target_logits": target,
        "draft_token_ids": torch.full((100, 3), 7),
        "num_draft_tokens": 3,
        "draft_logits": torch.zeros(100, 3, 20),
        "key": np.arange(100, dtype=np.uint64),
        "anchor": 5,
        "temperature": temperature,
        "impl": impl,
    }
    verdict = ops.verify_chain(**call, rule=Synthetic((1, 1, 0)))
    assert verdict.num_accepted_tokens.tolist() == [2] * 100
    if temperature == 0:
        assert verdict.token_ids[:, 2].tolist() == target[:, 2].argmax(-1).tolist()
    half = ops.verify_chain(**call, rule=Synthetic((0.5, 0.5, 0.5))).num_accepted_tokens
    assert set(half.tolist()) == {0, 3}
    # 50 expected, standard deviation 5
    assert 25 < (half == 3).sum() < 75


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@lossy
def test_what_the_target_excludes_never_stands(
    rule: LossyRule, temperature: float, impl: Impl
) -> None:
    target = torch.zeros(3, 2, 6)
    target[0, 0, 2] = -torch.inf
    rule = Synthetic((1.0,)) if isinstance(rule, Synthetic) else rule
    verdict = ops.verify_chain(
        target,
        torch.tensor([[2], [2], [9]]),
        1,
        draft_logits=torch.zeros(3, 1, 6),
        forbidden=torch.tensor([[False], [True], [False]]),
        key=1,
        anchor=np.arange(3),
        temperature=temperature,
        rule=rule,
        impl=impl,
    )
    assert verdict.num_accepted_tokens.tolist() == [0, 0, 0]
    assert not (verdict.token_ids[:2, 0] == 2).any() and (verdict.token_ids[:, 0] >= 0).all()


@lossy
def test_a_bad_row_of_the_draft_is_an_error_only_where_it_is_read(rule: LossyRule) -> None:
    call = random_call(8, 1, 9, "dense", seed=2)
    call |= {"temperature": 1.0, "draft_logits": torch.full((8, 1, 9), torch.nan)}
    call |= {"draft_token_ids": torch.full((8, 1), 3), "num_draft_tokens": 1, "forbidden": None}
    rule = Synthetic((0.0,)) if isinstance(rule, Synthetic) else rule
    found = set(ops.verify_chain(**call, rule=rule).error.tolist())
    assert (RowError.DRAFT in found) == isinstance(rule, Synthetic)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 3.0])
def test_certainty_is_the_exponential_of_minus_the_entropy(temperature: float) -> None:
    from fairdraft.ops.arithmetic import row_weights

    rng = np.random.default_rng(4)
    for size in (1, 2, 700):
        row = (3 * rng.normal(size=size)).astype(np.float32)
        row[1:3] = -np.inf
        c = np.float32(np.log2(np.e) / temperature)
        law = np.exp((row - row.max()) / np.float64(temperature))
        law = law[law > 0] / law.sum()
        exact = np.exp((law * np.log(law)).sum())
        assert certainty(row, c, row_weights(row, c)) == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("name", LOSSY_RULES)
def test_a_name_chooses_no_lossy_rule(name: str) -> None:
    call: dict[str, Any] = random_call(8, 2, 9, "dense", seed=1) | {"rule": name}
    with pytest.raises(ValueError, match=f"rule = '{name}' is lossy, so a name does not choose it"):
        ops.verify_chain(**call)


@lossy
def test_what_has_no_lossy_form_is_refused(rule: LossyRule) -> None:
    call: dict[str, Any] = random_call(8, 2, 9, "dense", seed=1) | {"rule": rule}
    with pytest.raises(ValueError, match=f"trace: rule '{rule.name}' is lossy and keeps none"):
        ops.verify_chain(**call, trace=Trace())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Typical(posterior_threshold=0.0), "posterior_threshold = 0.0 must be above 0"),
        (lambda: Typical(posterior_threshold=1.5), "posterior_threshold = 1.5.*at most 1"),
        (lambda: Typical(posterior_alpha=float("nan")), "posterior_alpha = nan"),
        (lambda: Typical(posterior_alpha=float("inf")), "posterior_alpha = inf must be finite"),
        (lambda: Threshold(accept_threshold_single=-1), "accept_threshold_single = -1"),
        (lambda: Threshold(accept_threshold_acc=True), "accept_threshold_acc = True"),
        (lambda: Synthetic(()), "rates is empty"),
        (lambda: Synthetic(0.5), "rates = 0.5 must be numbers"),  # pyright: ignore[reportArgumentType]
        (lambda: Synthetic((0.5, 0.6)), r"rates = \[0.5, 0.6\].*never rise"),
        (lambda: Synthetic((1.5,)), r"rates = \[1.5\] must be in \[0, 1\]"),
        (lambda: Synthetic.of_length(3.5, 2), "length = 3.5 must be from 1 to 3"),
    ],
)
def test_parameters_out_of_range_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_draft_without_a_rate_is_refused() -> None:
    call = random_call(8, 3, 9, "dense", seed=1)
    with pytest.raises(ValueError, match="are 2 for 3 drafts"):
        ops.verify_chain(**call, rule=Synthetic((0.5, 0.5)))


def test_rates_of_a_length() -> None:
    assert Synthetic.of_length(2.25, 3).rates == (1.0, 0.25, 0.0)
    assert Synthetic.of_length(1, 2).rates == (0.0, 0.0)
    assert Synthetic.of_length(4, 3).rates == (1.0, 1.0, 1.0)
