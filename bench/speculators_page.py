"""Writes the table of `docs/speculators.md` from results, audits and the test of q.

    fairdraft bench speculators --json > bench/results/speculators.json
    fairdraft bench speculators --device cuda --json > bench/results/speculators_gpu.json
    python bench/speculators_page.py

The second file may be missing. Audits are the reports of `fairdraft audit engine` in `docs/audits`;
a method without one is "not run". A block stands between `<!-- name -->` and `<!-- end -->`.
"""

from __future__ import annotations

import ast
import json
from typing import Any

from blocks import fill, markdown_table, rewrite
from conditions import ROOT, describe

PAGE = ROOT / "docs" / "speculators.md"
CPU = ROOT / "bench" / "results" / "speculators.json"
GPU = ROOT / "bench" / "results" / "speculators_gpu.json"
AUDITS = ROOT / "docs" / "audits"
Q_TEST = ROOT / "tests" / "speculators" / "test_q_contract.py"
#: tables of the test of q by what they say of a method
Q_TABLES = {"SAMPLED": "drafts follow q", "POINTS": "point masses"}
PLAIN = "plain"


def main() -> None:
    """Fills in both blocks of the page."""
    rewrite(PAGE, filled)


def filled(page: str) -> str:
    """The page with each block written anew from what is recorded."""
    cpu = json.loads(CPU.read_text(encoding="utf-8"))
    gpu = json.loads(GPU.read_text(encoding="utf-8")) if GPU.exists() else None
    blocks = {
        "speculators-conditions": conditions(cpu, gpu),
        "speculators": table(cpu, gpu, audits(), q_verdicts(Q_TEST.read_text(encoding="utf-8"))),
    }
    return fill(page, blocks, PAGE.name)


def conditions(cpu: dict[str, Any], gpu: dict[str, Any] | None) -> str:
    """What the figures depend on, a line a machine."""
    return "".join(
        f"- {found['device_name']}: {describe(found['conditions'])}; load after the run "
        f"{found['load_average_after']}; {found['threads']} threads, {found['target']['dtype']}; "
        f"{found['samples']} requests of {found['num_tokens']} tokens a cell, "
        f"{found['num_prompts']} prompts.\n"
        for found in (cpu, gpu)
        if found is not None
    )


def table(
    cpu: dict[str, Any],
    gpu: dict[str, Any] | None,
    audited: dict[str, str],
    q_tested: dict[str, str],
) -> str:
    """One line a speculator, in Markdown.

    Args:
        cpu, gpu: Documents of `fairdraft bench speculators`; the second may be missing.
        audited: Method to the verdict of an audit.
        q_tested: Method to what the test of q looks at.
    """
    temperatures = list(dict.fromkeys(cell["temperature"] for cell in cpu["cells"]))
    warmest = max(temperatures)
    rows = []
    for name in dict.fromkeys(cell["speculator"] for cell in cpu["cells"]):
        cells = {cell["temperature"]: cell for cell in _cells(cpu, name)}
        method = name.split(" ")[0]
        any_cell = cells[warmest]
        is_plain = name == PLAIN
        rows.append(
            (
                name if is_plain else f"`{name}`",
                "" if is_plain else str(any_cell["num_drafts"]),
                f"{any_cell['parameters']:,}" if any_cell["parameters"] else "none",
                *(_length(cells[temperature]) for temperature in temperatures),
                _speed(any_cell),
                *([] if gpu is None else [_gpu_speed(gpu, name, warmest)]),
                audited.get(method, "not run"),
                "" if is_plain else q_tested.get(method, "not in the test"),
            )
        )
    columns = [
        "speculator",
        "K",
        "parameters",
        *(f"tokens a round, T = {t:g}" for t in temperatures),
    ]
    columns += ["tokens/s, over plain"]
    columns += [] if gpu is None else [f"{gpu['device_name']}: tokens/s, over plain"]
    return markdown_table((*columns, "audit", "test of q"), rows)


def audits() -> dict[str, str]:
    """Method to the verdict of its latest audit: temperature 1, rule `token`, no filters."""
    found: dict[str, tuple[str, str]] = {}
    for path in sorted(AUDITS.glob("engine-*.json")):
        report = json.loads(path.read_text(encoding="utf-8"))
        subject = report["subject"]
        asked = subject["parameters"]
        is_whole = (asked["temperature"], asked["top_k"], asked["top_p"]) == (1.0, 0, 1.0)
        if not is_whole or subject["rule"] not in ("token", None):
            continue
        method = _method(asked["speculator"]) if subject["is_speculative"] else PLAIN
        state = f"[{report['verdict']['state']}](audits/{path.name})"
        if method not in found or found[method][0] < report["created"]:
            found[method] = (report["created"], state)
    return {method: state for method, (_, state) in found.items()}


def q_verdicts(source: str) -> dict[str, str]:
    """Method to what the test of q looks at, from the tables of its source."""
    found: dict[str, list[str]] = {}
    for node in ast.parse(source).body:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Dict):
            continue
        [name] = [target.id for target in node.targets if isinstance(target, ast.Name)]
        for key in node.value.keys if name in Q_TABLES else []:
            assert isinstance(key, ast.Constant)
            said = found.setdefault(str(key.value).partition(",")[0], [])
            said += [] if Q_TABLES[name] in said else [Q_TABLES[name]]
    return {method: ", ".join(said) for method, said in found.items()}


def _method(described: str) -> str:
    """The method of a speculator as `cli.speculation.describe` words it."""
    first = described.partition(",")[0].split(" ")[0]
    return {"draft": "draft_model", "no": PLAIN}.get(first, first)


def _cells(found: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [cell for cell in found["cells"] if cell["speculator"] == name]


def _length(cell: dict[str, Any]) -> str:
    if cell["interval"] is None or not cell["num_drafts"]:
        return f"{cell['acceptance_length']:.2f}"
    low, high = cell["interval"]
    return f"{cell['acceptance_length']:.2f} [{low:.2f}, {high:.2f}]"


def _speed(cell: dict[str, Any]) -> str:
    return f"{cell['tokens_per_second']['median']:.0f}, {cell['over_plain']['median']:.2f}"


def _gpu_speed(gpu: dict[str, Any], name: str, temperature: float) -> str:
    cells = [cell for cell in _cells(gpu, name) if cell["temperature"] == temperature]
    return _speed(cells[0]) if cells else ""


if __name__ == "__main__":
    main()
