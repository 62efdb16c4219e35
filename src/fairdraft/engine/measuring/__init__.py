"""Measuring speculators of a target: what they cost, and how much of what they draft stands."""

from fairdraft.engine.choice.candidates import Candidate, available, named
from fairdraft.engine.choice.prompts import PROMPTS, QUESTIONS, default_prompts
from fairdraft.engine.measuring.speculators import (
    MIN_PROMPTS,
    Cell,
    Measurement,
    measure_speculators,
)
from fairdraft.engine.measuring.timing import Spread
from fairdraft.engine.measuring.workload import RequestFailed

__all__ = [
    "MIN_PROMPTS",
    "PROMPTS",
    "QUESTIONS",
    "Candidate",
    "Cell",
    "Measurement",
    "RequestFailed",
    "Spread",
    "available",
    "default_prompts",
    "measure_speculators",
    "named",
]
