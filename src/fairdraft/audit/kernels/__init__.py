"""`fairdraft audit kernels`: our ops under the noise layouts of public engines, and under ours."""

from fairdraft.audit.kernels.claims import Claim
from fairdraft.audit.kernels.document import SCHEMA, document
from fairdraft.audit.kernels.experiment import Experiment
from fairdraft.audit.kernels.judging import ALPHA, DELTA
from fairdraft.audit.kernels.result import RowResult
from fairdraft.audit.kernels.rows import ROWS, Expected, Row, rows_of
from fairdraft.audit.kernels.run import KernelAudit, run_kernels

__all__ = [
    "ALPHA",
    "DELTA",
    "ROWS",
    "SCHEMA",
    "Claim",
    "Expected",
    "Experiment",
    "KernelAudit",
    "Row",
    "RowResult",
    "document",
    "rows_of",
    "run_kernels",
]
