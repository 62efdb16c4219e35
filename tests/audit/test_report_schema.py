"""The shipped schema, the dataclasses and real documents agree on every field."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from importlib.resources import files
from typing import Any

import jsonschema
import pytest

from fairdraft.audit.report import SCHEMA, Report, SubjectEntry, VerdictEntry
from fairdraft.stats.summary import (
    AgreementSummary,
    FamilySummary,
    HeatSummary,
    PositionSummary,
    SlotSummary,
    TemplateSummary,
)
from tests.audit.reports import KINDS, report_of

DEFINITIONS = {
    "verdict": VerdictEntry,
    "subject": SubjectEntry,
    "family": FamilySummary,
    "template": TemplateSummary,
    "slot": SlotSummary,
    "position": PositionSummary,
    "agreement": AgreementSummary,
    "heat": HeatSummary,
}


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return json.loads(files("fairdraft.audit.report").joinpath("schema.json").read_text())


@pytest.fixture(scope="module")
def validator(schema: dict[str, Any]) -> jsonschema.Draft202012Validator:
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("kind", KINDS)
def test_documents_follow_the_schema(validator: jsonschema.Draft202012Validator, kind: str) -> None:
    document = json.loads(json.dumps(report_of(kind).to_json(), allow_nan=False))
    validator.validate(document)
    assert Report.from_json(document) == report_of(kind)


def test_schema_lists_the_fields_of_the_dataclasses(schema: dict[str, Any]) -> None:
    assert schema["properties"]["schema"]["const"] == SCHEMA
    parts = [(schema, Report), *((schema["$defs"][k], v) for k, v in DEFINITIONS.items())]
    assert set(schema["$defs"]) == {*DEFINITIONS, "evidence"}
    for part, kind in parts:
        assert set(part["properties"]) == {field.name for field in fields(kind)}
        required = {
            field.name
            for field in fields(kind)
            if field.default is MISSING and field.default_factory is MISSING
        }
        # the reader knows the schema by its name, so that is required too
        assert set(part["required"]) == required | ({"schema"} if kind is Report else set())
        assert part["additionalProperties"] is False


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_tokens", -1),
        ("num_tokens", "many"),
        ("log10_e", "NaN"),
        ("curve", [[1, 2, 3]]),
        ("verdict", None),
        ("settings", {"eps": 0.01}),
        ("unknown", 1),
    ],
)
def test_bent_documents_do_not(
    validator: jsonschema.Draft202012Validator, field: str, value: Any
) -> None:
    document = {**json.loads(json.dumps(report_of("FAIL").to_json())), field: value}
    assert not validator.is_valid(document)
