"""Choosing a speculator for a target, once and before any request, by measured rounds."""

from fairdraft.engine.choice.candidates import Candidate, available, named
from fairdraft.engine.choice.choose import Choice, Estimate, choose
from fairdraft.engine.choice.config import AutoConfig, read_config
from fairdraft.engine.choice.cost import measure_cost_ratio

__all__ = [
    "AutoConfig",
    "Candidate",
    "Choice",
    "Estimate",
    "available",
    "choose",
    "measure_cost_ratio",
    "named",
    "read_config",
]
