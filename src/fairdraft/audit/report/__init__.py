"""The report of an audit: a document, one HTML page, and tables for the terminal."""

from fairdraft.audit.report.build import build_report
from fairdraft.audit.report.document import (
    SCHEMA,
    AgreementEntry,
    FamilyEntry,
    Heat,
    PositionEntry,
    Report,
    SlotEntry,
    SubjectEntry,
    TemplateEntry,
    VerdictEntry,
)

__all__ = [
    "SCHEMA",
    "AgreementEntry",
    "FamilyEntry",
    "Heat",
    "PositionEntry",
    "Report",
    "SlotEntry",
    "SubjectEntry",
    "TemplateEntry",
    "VerdictEntry",
    "build_report",
]
