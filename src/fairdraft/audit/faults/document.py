"""The JSON form of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairdraft.audit.faults.case import ALPHA, DELTA, EPS, Case
from fairdraft.audit.faults.run import Catalogue
from fairdraft.audit.faults.trial import Outcome

__all__ = ["SCHEMA", "case_document", "document"]

SCHEMA = "fairdraft/audit-faults/1"


def document(run: Catalogue) -> dict[str, Any]:
    """Returns a run as plain values; numbers may be infinite."""
    return {
        **case_document([outcome.case for outcome in run.outcomes]),
        "seed": run.seed,
        "rows": [_row(outcome) for outcome in run.outcomes],
        "surprises": run.surprises,
        "seconds": run.seconds,
        "exit_code": run.exit_code,
    }


def case_document(cases: Sequence[Case]) -> dict[str, Any]:
    """Returns the catalogue itself as plain values."""
    return {
        "schema": SCHEMA,
        "settings": {"eps": EPS, "alpha": ALPHA, "delta": DELTA},
        "rows": [_case(case) for case in cases],
    }


def _case(case: Case) -> dict[str, Any]:
    fault = case.fault
    return {
        "name": case.name,
        "title": None if fault is None else fault.title,
        "kind": None if fault is None else fault.kind,
        "function": None if fault is None else fault.function,
        "source": None if fault is None else fault.source,
        "setup": {
            "name": case.setup.name,
            "title": case.setup.title,
            "is_engine": case.setup.is_engine,
        },
        "planned_tokens": case.num_tokens,
        "expected": {
            "state": None if case.expected is None else case.expected.value,
            "names": list(case.names),
            "is_traced": case.is_traced,
            "keeps_text": case.keeps_text,
        },
    }


def _row(outcome: Outcome) -> dict[str, Any]:
    return {
        **_case(outcome.case),
        "verdict": {
            "state": outcome.verdict.state.value,
            "sentence": outcome.verdict.sentence,
            "diagnosis": outcome.verdict.diagnosis,
        },
        "num_tokens": outcome.num_tokens,
        "tokens_to_fail": outcome.tokens_to_fail,
        "log10_e": outcome.log10_e,
        "named": outcome.named,
        "num_collisions": outcome.num_collisions,
        "num_differing": outcome.num_differing,
        "num_calls": outcome.num_calls,
        "seconds": outcome.seconds,
        "surprises": list(outcome.surprises),
    }
