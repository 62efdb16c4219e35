"""The JSON form of a run: the table's facts, and everything behind them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fairdraft.audit.kernels.device.rows import DeviceRow
from fairdraft.audit.kernels.judging import ALPHA, DELTA, ChiSquare
from fairdraft.audit.kernels.result import RowResult
from fairdraft.audit.kernels.run import KernelAudit

__all__ = ["SCHEMA", "document"]

SCHEMA = "fairdraft/audit-kernels/1"


def document(audit: KernelAudit) -> dict[str, Any]:
    """Returns a run as plain values; numbers may be infinite."""
    return {
        "schema": SCHEMA,
        "settings": {"alpha": ALPHA, "delta": DELTA, "seed": audit.seed, "device": audit.device},
        "rows": [_row(result) for result in audit.results],
        "claims": [asdict(claim) for claim in audit.claims],
        "surprises": audit.surprises,
        "seconds": audit.seconds,
        "exit_code": audit.exit_code,
    }


def _row(result: RowResult) -> dict[str, Any]:
    row, judgment = result.row, result.judgment
    experiment = row.experiment
    return {
        "name": row.name,
        "experiment": experiment.title,
        "published": experiment.published,
        "layout": row.layout,
        "constant_position": row.constant_position,
        "decoding": asdict(experiment.decoding),
        "vocab_size": experiment.pair.vocab_size,
        "num_tokens": experiment.num_tokens,
        "num_trials": result.num_trials,
        "eps": experiment.eps,
        "tv": {
            "observed": judgment.distance.observed,
            "floor": judgment.distance.floor,
            "lower": judgment.distance.lower,
            "upper": judgment.distance.upper,
        },
        "chi_square": _test(judgment.chi_square),
        "chi_square_all_tokens": _test(judgment.wide),
        "chi_square_closed_form": _test(result.fit),
        "log10_e": judgment.log10_e,
        "acceptance": asdict(result.acceptance),
        "trace": asdict(result.traced),
        "verdict": {
            "state": judgment.state.value,
            "diagnosis": judgment.diagnosis,
            "named": result.named,
        },
        "expected": {
            "state": row.expected.state.value,
            "diagnosis": row.expected.diagnosis,
            "traced": row.expected.traced,
        },
        "surprises": list(result.surprises),
        "seconds": result.seconds,
        **_device(result),
    }


def _device(result: RowResult) -> dict[str, Any]:
    """What only rows of a device have."""
    if not isinstance(result.row, DeviceRow) or result.replay is None:
        return {}
    return {"call": asdict(result.row.call), "replay": asdict(result.replay)}


def _test(test: ChiSquare | None) -> dict[str, Any] | None:
    return None if test is None else asdict(test)
