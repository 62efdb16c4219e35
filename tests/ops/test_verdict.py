"""A verdict comes from a device in one transfer, every bit as it was there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fairdraft.ops import TreeVerdict, Verdict
from fairdraft.ops.verdict import copied_together


def verdict(count: int, depth: int) -> Verdict:
    """One with another number everywhere, and margins that are no finite ones."""
    numbers = iter(torch.arange(8 * count * (depth + 1) + 8).split(max(count * (depth + 1), 1)))

    def ints(*shape: int) -> Tensor:
        return next(numbers)[: torch.Size(shape).numel()].reshape(shape)

    margin = ints(count, depth + 1).double() / 3
    margin.view(-1)[:2] = torch.tensor([torch.inf, torch.nan])[: margin.numel()]
    return Verdict(
        token_ids=ints(count, depth + 1),
        num_accepted_tokens=ints(count),
        num_emitted_tokens=ints(count),
        last_stream=ints(count),
        margin=margin,
        error=ints(count),
        num_broken=ints(count),
    )


def tensors_of(given: Verdict) -> dict[str, Tensor]:
    return {name: value for name, value in vars(given).items() if isinstance(value, Tensor)}


def assert_same_bits(got: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert list(got) == list(wanted)
    for name, tensor in wanted.items():
        assert got[name].dtype is tensor.dtype, name
        assert got[name].shape == tensor.shape, name
        assert torch.equal(got[name].view(torch.int64), tensor.contiguous().view(torch.int64)), name


@pytest.mark.parametrize(("count", "depth"), [(3, 2), (1, 0), (0, 4)])
def test_what_is_copied_together_is_what_was_given(count: int, depth: int) -> None:
    own = tensors_of(verdict(count, depth))
    copies = copied_together(own)
    assert_same_bits(copies, own)
    assert len({tensor.untyped_storage().data_ptr() for tensor in copies.values()}) == 1


def test_views_and_single_numbers_are_copied_as_they_read() -> None:
    steps = torch.arange(12).view(3, 4)
    own = {"columns": steps.T, "every other": steps[:, ::2], "one": torch.tensor(7)}
    own["wide"] = torch.tensor(1.5, dtype=torch.float64).expand(2, 3)
    assert_same_bits(copied_together(own), own)


@pytest.mark.parametrize("kind", [Verdict, TreeVerdict])
def test_a_verdict_of_a_device_is_moved_at_once(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given = verdict(3, 2)
    if kind is TreeVerdict:
        given = TreeVerdict(
            **vars(given), path=given.token_ids + 100, first_child=given.token_ids + 200
        )
    given = replace(given, lossy="typical")
    moved: list[Tensor] = []
    original = Tensor.cpu

    def counted(tensor: Tensor) -> Tensor:
        moved.append(tensor)
        return original(tensor)

    monkeypatch.setattr(Tensor, "cpu", counted)
    monkeypatch.setattr(Tensor, "is_cpu", False)
    found = given.cpu()
    monkeypatch.undo()
    assert len(moved) == 1
    assert type(found) is kind
    assert found.lossy == "typical"
    assert_same_bits(tensors_of(found), tensors_of(given))


def test_a_verdict_of_the_host_stays_as_it_is() -> None:
    given = verdict(2, 1)
    assert given.cpu() is given
