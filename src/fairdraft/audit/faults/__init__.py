"""Planted faults: mistakes that were made, as overrides of one production function each."""

from fairdraft.audit.faults.case import ALPHA, DELTA, EPS, Case
from fairdraft.audit.faults.catalogue import CASES, FAULTS, find_cases
from fairdraft.audit.faults.fault import Fault, Planting
from fairdraft.audit.faults.run import Catalogue, run_catalogue
from fairdraft.audit.faults.setups import SETUPS, Setup
from fairdraft.audit.faults.trial import Outcome, run_case

__all__ = [
    "ALPHA",
    "CASES",
    "DELTA",
    "EPS",
    "FAULTS",
    "SETUPS",
    "Case",
    "Catalogue",
    "Fault",
    "Outcome",
    "Planting",
    "Setup",
    "find_cases",
    "run_case",
    "run_catalogue",
]
