"""Request keys: any Python int, the prompt mixed in, refusals, and the hex form."""

from __future__ import annotations

import numpy as np
import pytest

from fairdraft.noise import format_noise_key, parse_noise_key, request_key

SEEDS = [
    0,
    1,
    -1,
    2**31 - 1,
    2**31,
    2**32,
    2**32 + 1,
    5,
    5 + 2**63,
    2**63,
    2**64 - 1,
    2**64,
    -(2**70),
]


def test_every_seed_and_prompt_has_a_key_of_its_own() -> None:
    prompts: list[list[int]] = [[], [0], [1], [0, 0], [1, 2], [2, 1]]
    keys = {request_key(seed, prompt) for seed in SEEDS for prompt in prompts}
    assert len(keys) == len(SEEDS) * len(prompts)
    assert all(0 <= key < 1 << 64 for key in keys)


def test_a_key_repeats_for_lists_and_arrays() -> None:
    assert (
        request_key(7, [1, 2])
        == request_key(7, np.array([1, 2]))
        == request_key(np.int32(7), [1, 2])
    )


def test_golden_keys() -> None:
    assert format_noise_key(request_key(5, [1, 2])) == format_noise_key(14186562310486561078)


def test_none_asks_the_operating_system() -> None:
    assert request_key(None) != request_key(None)


@pytest.mark.parametrize("seed", [True, False, 1.0, "1", [1]])
def test_other_seeds_are_refused(seed: object) -> None:
    with pytest.raises(ValueError, match="seed = .* (bool|not an integer)"):
        request_key(seed)  # type: ignore[arg-type]


def test_noise_key_round_trip() -> None:
    for key in (0, 1, (1 << 64) - 1, request_key(3)):
        assert parse_noise_key(format_noise_key(key)) == key
    assert parse_noise_key("00000000000000FF") == 255


@pytest.mark.parametrize("text", ["", "ff", "0x00000000000000ff", "g" * 16, "0" * 17, " " * 16])
def test_malformed_noise_keys_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="noise_key = .* is not 16 hex digits"):
        parse_noise_key(text)
