"""Layouts planted in the kernels, under Triton's interpreter: what they name, and that they go.

Few programs each, since a program costs the interpreter about ten milliseconds.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fairdraft import noise, ops
from fairdraft.noise import Stream
from fairdraft.ops import DeviceAddress

pytest.importorskip("triton")

from fairdraft.audit import device_layouts
from fairdraft.audit.device_layouts import device_counters, host_twin, planted
from fairdraft.noise import device as noise_device

CPU = torch.device("cpu")
ORIGINAL = noise_device.pack_counter
STREAMS = [int(stream) for stream in Stream]
pytestmark = pytest.mark.usefixtures("numpy_may_warn")


def addresses(count: int) -> DeviceAddress:
    """Streams in turn; all other fields up to their ends."""
    rng = np.random.default_rng(3)

    def field(bits: int) -> torch.Tensor:
        values = rng.integers(0, 1 << bits, count)
        values[:2] = 0, (1 << bits) - 1
        return torch.from_numpy(values)

    stream = torch.from_numpy(np.resize(STREAMS, count))
    return DeviceAddress(stream, field(62), field(32), field(32), field(16), field(16))


@pytest.mark.parametrize("name", ["coupled", "salted", "ours"])
def test_kernels_form_the_addresses_of_the_host(name: str) -> None:
    at = addresses(14)
    with host_twin(name):
        wanted = at.to_host(14).counter
    with planted(name):
        got = device_counters(at, 14, CPU)
    np.testing.assert_array_equal(got, wanted)
    own = at.to_host(14).counter
    assert (got != own).any() == (name != "ours")


def test_twins_on_the_host_keep_the_key() -> None:
    at = addresses(14)
    for name in ("coupled", "salted"):
        with host_twin(name):
            kept = at.to_host(14).key
        np.testing.assert_array_equal(kept.view(np.int64), np.asarray(at.key))


def test_a_layout_goes_when_its_block_ends() -> None:
    for name, function in device_layouts.DEVICE_LAYOUTS.items():
        with planted(name):
            assert noise_device.pack_counter is function
        assert noise_device.pack_counter is ORIGINAL
    with pytest.raises(RuntimeError, match="planted"), planted("coupled"):
        raise RuntimeError("planted")
    assert noise_device.pack_counter is ORIGINAL


def test_layouts_do_not_nest_and_cover_no_other_replacement(monkeypatch) -> None:
    with planted("coupled"):
        with pytest.raises(ValueError, match="'salted' cannot be"), planted("salted"):
            pass
        assert noise_device.pack_counter is device_layouts.by_shared_position
    with monkeypatch.context() as patch:
        patch.setattr(noise_device, "pack_counter", device_layouts.by_position)
        with pytest.raises(ValueError, match="replaced already"), planted("ours"):
            pass
        assert noise_device.pack_counter is device_layouts.by_position
    with pytest.raises(ValueError, match="'unheard of' is unknown"), planted("unheard of"):
        pass
    with planted("ours"):
        pass


def replaced(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Replacements by the kernels, and what the drafts' own noise picks from the residual.

    Every draft is rejected: the target excludes ids 0..255, the draft all others. The residual is
    the target, flat over 256 ids.
    """
    target = torch.zeros(512)
    target[:256] = -torch.inf
    draft = torch.where(target < 0, 0.0, -torch.inf)
    key = torch.arange(count) + 5
    at = DeviceAddress(Stream.DRAFT, key, 7, anchor=7, node=1)
    drafts = ops.sample(draft.expand(count, -1), at, impl="triton").token_ids
    decided = ops.verify_chain(
        target.expand(count, 2, -1),
        drafts[:, None],
        torch.ones(count, dtype=torch.int64),
        draft_logits=draft.expand(count, 1, -1),
        key=key,
        anchor=7,
        impl="triton",
    )
    assert not decided.num_accepted_tokens.any()
    again = ops.sample(target.expand(count, -1), at, impl="triton").token_ids
    return decided.token_ids[:, 0], again


def test_a_replacement_shares_the_noise_of_its_draft_under_coupled_alone() -> None:
    """Three replacements of 256 ids agree by chance once in 256^3 = 2e7, both of two in 65,536."""
    with planted("coupled"):
        got, shared = replaced(3)
    assert torch.equal(got, shared)
    with planted("salted"):
        got, own = replaced(2)
    assert not torch.equal(got, own)


def test_production_draws_the_same_before_and_after() -> None:
    logits = torch.zeros(2, 400)
    at = DeviceAddress(Stream.RESIDUAL, 3, torch.arange(2), anchor=1, node=2)
    before = ops.sample(logits, at, impl="triton", arithmetic="portable").token_ids
    with planted("coupled"):
        during = ops.sample(logits, at, impl="triton", arithmetic="portable").token_ids
    after = ops.sample(logits, at, impl="triton", arithmetic="portable").token_ids
    assert torch.equal(before, ops.sample(logits, at).token_ids)
    assert torch.equal(before, after)
    assert not torch.equal(before, during)
    named = noise.address(Stream.DRAFT, key=3, position=np.arange(2))
    assert torch.equal(during, ops.sample(logits, named).token_ids)
