"""The report of an audit: a document, one HTML page, and tables for the terminal."""

from fairdraft.audit.report.build import build_report
from fairdraft.audit.report.document import SCHEMA, Report, SubjectEntry, VerdictEntry

__all__ = ["SCHEMA", "Report", "SubjectEntry", "VerdictEntry", "build_report"]
