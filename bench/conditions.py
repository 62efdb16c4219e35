"""Where this checkout is, and what a figure depends on besides the code."""

from __future__ import annotations

from pathlib import Path

import torch

from fairdraft.engine.measuring.conditions import PACKAGES, conditions, describe

__all__ = ["PACKAGES", "ROOT", "conditions", "describe", "thread_counts"]

ROOT = Path(__file__).resolve().parent.parent


def thread_counts(wanted: list[int] | None) -> list[int]:
    """Intra-op thread counts of torch to measure: those asked for, or 1 and every core."""
    return wanted or sorted({1, torch.get_num_threads()})
