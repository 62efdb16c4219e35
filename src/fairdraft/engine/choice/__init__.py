"""Choosing a speculator for a target, once and before any request, by measured rounds."""

from fairdraft.engine.choice.candidates import Candidate, available, named
from fairdraft.engine.choice.choose import Choice, Estimate, choose
from fairdraft.engine.choice.config import AutoConfig, read_config

__all__ = [
    "AutoConfig",
    "Candidate",
    "Choice",
    "Estimate",
    "available",
    "choose",
    "named",
    "read_config",
]
