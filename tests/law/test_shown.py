"""The table of `docs/rules.md` says where each mistake is shown to fail: what it names is there."""

from __future__ import annotations

import re
from pathlib import Path

from fairdraft.audit.faults import FAULTS

PAGE = Path(__file__).parents[2] / "docs" / "rules.md"


def test_every_test_and_every_fault_of_the_table_exists() -> None:
    text = PAGE.read_text(encoding="utf-8")
    table = text.partition("<!-- shown -->\n")[2].partition("<!-- end -->")[0]
    lines = table.splitlines()[2:]
    assert len(lines) >= 10
    for line in lines:
        found = re.findall(r"\[(test_\w+)\]\((\.\./tests/[\w/]+\.py)\)", line)
        assert found, line
        for name, path in found:
            source = (PAGE.parent / path).resolve().read_text(encoding="utf-8")
            assert f"def {name}(" in source, f"{name} is not in {path}"
    named = set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", table))
    assert len(named) >= 8 and named <= set(FAULTS)
