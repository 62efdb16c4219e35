"""Kernels of the CPU where nothing can be kept on disk."""

from __future__ import annotations

import numba.core.caching as caching
import pytest

from fairdraft.ops.cpu.kernel import kernel


def test_without_a_folder_to_write_kernels_are_compiled_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A container that can be read only: no folder of ours, of the user or of the environment."""
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])

    def twice(number):
        return 2 * number

    assert kernel(twice)(21) == 42
