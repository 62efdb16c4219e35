"""Request keys: 64 bits that name a request's whole noise."""

from __future__ import annotations

import hashlib
import operator
import os
from collections.abc import Sequence
from typing import SupportsIndex

import numpy as np

_PERSON = b"fairdraft/1"


def request_key(
    seed: SupportsIndex | None, prompt_token_ids: Sequence[int] | np.ndarray = ()
) -> int:
    """Mixes a seed and a prompt into a request's key.

    One seed on many prompts shares nothing, and the same seed and prompt repeat exactly.

    Args:
        seed: Any Python int (negative and huge ones too; -1 is a seed), or None for a key from
            the operating system.
        prompt_token_ids: The prompt, int64 ids.

    Returns:
        A key in 0 .. 2^64 - 1: BLAKE2b-64 of the length-prefixed signed little-endian seed and
        of a digest of the ids.

    Raises:
        ValueError: If the seed is a bool or not an integer.
    """
    if seed is None:
        return int.from_bytes(os.urandom(8), "little")
    if isinstance(seed, bool):
        raise ValueError(f"seed = {seed} is a bool; give an int, or None for a random key")
    try:
        number = operator.index(seed)
    except TypeError:
        raise ValueError(
            f"seed = {seed!r} is not an integer; give an int, or None for a random key"
        ) from None
    seed_bytes = number.to_bytes((number.bit_length() + 8) // 8, "little", signed=True)
    prompt = np.ascontiguousarray(prompt_token_ids, dtype="<i8").tobytes()
    mix = hashlib.blake2b(digest_size=8, person=_PERSON)
    mix.update(len(seed_bytes).to_bytes(8, "little"))
    mix.update(seed_bytes)
    mix.update(hashlib.blake2b(prompt, digest_size=32, person=_PERSON).digest())
    return int.from_bytes(mix.digest(), "little")


def format_noise_key(key: int) -> str:
    """Writes a key as 16 hex digits, the form that responses carry."""
    if not 0 <= key < 1 << 64:
        raise ValueError(f"key = {key} does not fit 64 bits; make one with request_key(seed)")
    return f"{key:016x}"


def parse_noise_key(text: str) -> int:
    """Reads a key back from its 16 hex digits.

    Raises:
        ValueError: If the text is not exactly 16 hex digits.
    """
    digits = text.lower() if isinstance(text, str) else ""
    if len(digits) != 16 or any(c not in "0123456789abcdef" for c in digits):
        raise ValueError(
            f"noise_key = {text!r} is not 16 hex digits; copy it from a response's noise_key"
        )
    return int(digits, 16)
