"""Measuring speculators of a target: what they cost, and how much of what they draft stands."""

from fairdraft.engine.choice.candidates import Candidate, available, named
from fairdraft.engine.choice.prompts import PROMPTS
from fairdraft.engine.measuring.speculators import (
    MIN_PROMPTS,
    Cell,
    Measurement,
    RequestFailed,
    measure_speculators,
)
from fairdraft.engine.measuring.timing import Spread

__all__ = [
    "MIN_PROMPTS",
    "PROMPTS",
    "Candidate",
    "Cell",
    "Measurement",
    "RequestFailed",
    "Spread",
    "available",
    "measure_speculators",
    "named",
]
