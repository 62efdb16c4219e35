"""The audit of the kernels on a GPU, with planted layouts, and its figures in `docs/gpu.md`.

    python bench/gpu_audit.py [--quick] [--seed N] [--json FILE]
    python bench/gpu_audit.py --markdown FILE.json
    python bench/gpu_audit.py --page FILE.json

What `fairdraft audit kernels --device cuda` runs, where only torch, triton, numpy and transformers
are installed. Exits with 1 if any row or claim is not as expected. The file holds everything; the
last line of stdout is JSON and says how it ended.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blocks import fill, markdown_table, rewrite
from conditions import ROOT, conditions

PAGE = ROOT / "docs" / "gpu.md"
COLUMNS = (
    *("row", "samples", "TV", "bound", "eps", "chi-square", "limit", "accepted"),
    *("verdict", "named by the law", "like the host"),
)


def main() -> None:
    """Runs and reports, or writes what was recorded."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few rows of few kernels")
    parser.add_argument("--seed", type=int, default=0, help="another integer: other samples")
    parser.add_argument("--jobs", type=int, help="processes that compile ahead")
    parser.add_argument("--json", type=Path, help="where the document goes")
    parser.add_argument("--markdown", type=Path, metavar="JSON", help="print a file as a table")
    parser.add_argument("--page", type=Path, metavar="JSON", help="write a file into docs/gpu.md")
    arguments = parser.parse_args()
    if arguments.markdown is not None:
        print(table(json.loads(arguments.markdown.read_text())), end="")
    elif arguments.page is not None:
        recorded = json.loads(arguments.page.read_text())
        rewrite(PAGE, lambda page: filled(page, recorded))
    else:
        sys.exit(_run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    from fairdraft.audit.kernels import document
    from fairdraft.audit.kernels.device.rows import device_rows_of
    from fairdraft.audit.kernels.device.setting import checked_device

    checked_device("cuda")
    from fairdraft.audit.kernels.device.run import run_on_device

    audit = run_on_device(
        device_rows_of(quick=arguments.quick),
        seed=arguments.seed,
        jobs=arguments.jobs,
        has_streams=not arguments.quick,
        on_progress=_note,
    )
    found = {"benchmark": "gpu_audit", "conditions": _conditions(), **document(audit)}
    print(table(found))
    print(claims(found))
    for sentence in found["surprises"]:
        print(f"NOT EXPECTED: {sentence}")
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(_strict(found), indent=1, allow_nan=False)
        arguments.json.write_text(text + "\n", encoding="utf-8")
    print(json.dumps(summary(found)), flush=True)
    return found["exit_code"]


def _note(step: Any) -> None:
    row = step.result
    print(
        f"{step.seconds:6.1f} s  {step.num_done} of {step.num_rows}, {row.row.name}: "
        f"{row.judgment.state}{', NOT EXPECTED' * bool(row.surprises)} ({row.seconds:.1f} s)",
        file=sys.stderr,
        flush=True,
    )


def _conditions() -> dict[str, Any]:
    import torch
    import triton

    card = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "device": card.name,
        "cuda": torch.version.cuda,
        "triton": triton.__version__,
        **{name: conditions()[name] for name in ("python", "torch", "numpy", "commit")},
    }


def _strict(value: Any) -> Any:
    """What JSON has no numbers for becomes null."""
    if isinstance(value, dict):
        return {name: _strict(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """The last line of stdout: how it ended, without the rows."""
    names = ("benchmark", "conditions", "settings", "surprises", "seconds", "exit_code")
    states = Counter(row["verdict"]["state"] for row in found["rows"])
    return {name: found[name] for name in names} | {"verdicts": dict(states)}


def describe(found: dict[str, Any]) -> str:
    """One line that says what the figures depend on."""
    state = found["conditions"]
    return (
        f"{state['device']}; Python {state['python']}, torch {state['torch']}, CUDA "
        f"{state['cuda']}, Triton {state['triton']}; commit {state['commit']}; seed "
        f"{found['settings']['seed']}; {len(found['rows'])} rows in {found['seconds']:.0f} s, "
        f"compilation included; {_outcome(found)}"
    )


def _outcome(found: dict[str, Any]) -> str:
    count = len(found["surprises"])
    return f"{count} not as expected" if count else "all as expected"


def table(found: dict[str, Any]) -> str:
    """One line a row, in Markdown."""
    return markdown_table(COLUMNS, [_cells(row) for row in found["rows"]])


def _cells(row: dict[str, Any]) -> Sequence[str]:
    test, verdict, replay = row["chi_square"], row["verdict"], row["replay"]
    return (
        row["name"],
        f"{row['num_trials']:,}",
        f"{row['tv']['observed']:.5f}",
        f"{row['tv']['upper']:.5f}",
        f"{row['eps']:g}",
        "" if test is None else _statistic(test["statistic"]),
        "" if test is None else f"{test['limit']:.1f}",
        f"{row['acceptance']['share']:.4f}" if row["decoding"]["num_drafts"] else "",
        verdict["state"] + ", NOT EXPECTED" * bool(row["surprises"]),
        verdict["diagnosis"] or "",
        f"{replay['num_texts'] - replay['num_unlike']} of {replay['num_texts']}",
    )


def _statistic(value: float | None) -> str:
    return "infinite" if value is None else f"{value:,.1f}"


def claims(found: dict[str, Any]) -> str:
    """What the rows show together, a line each."""
    return "".join(
        f"- {'Yes' if claim['holds'] else 'NO'}: {claim['sentence']}.\n"
        for claim in found["claims"]
    )


def filled(page: str, found: dict[str, Any]) -> str:
    """The page with each block written anew."""
    blocks = {
        "gpu-audit-conditions": describe(found) + ".\n",
        "gpu-audit-claims": claims(found),
        "gpu-audit-table": table(found),
    }
    return fill(page, blocks, PAGE.name)


if __name__ == "__main__":
    main()
