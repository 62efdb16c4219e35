"""`fairdraft audit plan`, and the group that it belongs to."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from fairdraft.cli.audit import SUBCOMMANDS
from tests.cli.conftest import Cli


def test_table_names_every_family(cli: Cli) -> None:
    from fairdraft.stats import FAMILIES

    result = cli("audit", "plan", "--alpha", "1e-6")
    assert result.code == 0 and "alpha=1e-06" in result.out
    words = " ".join(result.out.replace("│", " ").split())
    for family in FAMILIES:
        assert (family.name.split()[0] in words) or family.is_diagnostic


def test_json_holds_what_was_asked(cli: Cli) -> None:
    result = cli("audit", "plan", "--json", "--eps", "0.02", "--cells", "8", "--tv", "0.05")
    document = json.loads(result.out)
    assert document["schema"] == "fairdraft.audit.plan/1" and document["eps"] == 0.02
    (entry,) = document["plans"]
    assert entry["num_cells"] == 8 and entry["families"] == ["q/p octile", "rank"]
    assert entry["tokens_to_pass"] is None and 1_000 < entry["tokens_to_fail"] < 10_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--eps", "2"), "eps lies strictly between 0 and 1, got 2"),
        (("--alpha", "0"), "alpha lies strictly between"),
        (("--tv", "1.5"), "tv lies in [0, 1)"),
        (("--cells", "1"), "at least 2 cells"),
    ],
)
def test_impossible_wishes_are_usage_errors(
    cli: Cli, arguments: tuple[str, ...], message: str
) -> None:
    result = cli("audit", "plan", *arguments)
    assert result.code == 2 and message in result.err


def test_group_lists_its_commands(cli: Cli) -> None:
    result = cli("audit", "--help")
    assert result.code == 0 and "plan" in result.out
    assert "plan" in SUBCOMMANDS and len(set(SUBCOMMANDS)) == len(SUBCOMMANDS)


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys, fairdraft.cli.app; "
        "print(sorted({'numpy', 'torch', 'transformers', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
