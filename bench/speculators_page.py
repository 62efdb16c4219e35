"""Writes the tables of `docs/speculators.md` and `docs/smollm2.md` from what is recorded.

    fairdraft bench speculators --json > bench/results/speculators.json
    fairdraft bench speculators --device cuda --json > bench/results/speculators_gpu.json
    fairdraft bench speculators --batch 8 --json > bench/results/speculators_batch.json
    fairdraft bench speculators --batch 8 --device cuda --json \\
        > bench/results/speculators_batch_gpu.json
    fairdraft bench speculators smollm2 -s '{"method": "eagle3", "model": "FOLDER"}' -s ngram \\
        -k 3 --temperature 0 --temperature 1 --tokens 64 --json > bench/results/smollm2.json
    ... --device cuda --json > bench/results/smollm2_gpu.json
    python bench/speculators_page.py

Any of the files may be missing. Tokens a round are those of the first machine that has them. Audits
are the reports of `fairdraft audit engine` in `docs/audits`; a method without one is "not run". A
block stands between `<!-- name -->` and `<!-- end -->`.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blocks import fill, markdown_table
from conditions import ROOT, describe

PAGE = ROOT / "docs" / "speculators.md"
SMOLLM2_PAGE = ROOT / "docs" / "smollm2.md"
RESULTS = ROOT / "bench" / "results"
#: by table, machine after machine
FILES = {
    "batch": ("speculators_batch.json", "speculators_batch_gpu.json"),
    "alone": ("speculators.json", "speculators_gpu.json"),
    "smollm2": ("smollm2.json", "smollm2_gpu.json"),
}
AUDITS = ROOT / "docs" / "audits"
Q_TEST = ROOT / "tests" / "speculators" / "test_q_contract.py"
#: tables of the test of q by what they say of a method
Q_TABLES = {"SAMPLED": "drafts follow q", "POINTS": "point masses"}
PLAIN = "plain"


def main() -> None:
    """Fills in all blocks of both pages."""
    for page in (PAGE, SMOLLM2_PAGE):
        page.write_text(filled(page), encoding="utf-8")


def filled(page: Path) -> str:
    """A page with each block written anew from what is recorded."""
    found = {name: _recorded(files) for name, files in FILES.items()}
    verdicts = Verdicts(audits(), q_verdicts(Q_TEST.read_text(encoding="utf-8")))
    blocks = {
        PAGE: {
            "speculators-conditions": conditions([*found["batch"], *found["alone"]]),
            "speculators-batch": table(found["batch"], verdicts),
            # said once, in the first table that there is
            "speculators": table(found["alone"], None if found["batch"] else verdicts),
        },
        SMOLLM2_PAGE: {
            "smollm2-conditions": conditions(found["smollm2"]),
            "smollm2-speed": table(found["smollm2"], None, are_all_speeds=True),
        },
    }
    return fill(page.read_text(encoding="utf-8"), blocks[page], page.name)


def _recorded(names: Iterable[str]) -> list[dict[str, Any]]:
    paths = [RESULTS / name for name in names]
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]


def conditions(documents: list[dict[str, Any]]) -> str:
    """What the figures depend on, a line a document."""
    return "".join(
        f"- {found['device_name']}: {describe(found['conditions'])}; load after the run "
        f"{found['load_average_after']}; {found['threads']} threads, {found['target']['dtype']}; "
        f"{_requests(found)} a cell, {found['num_prompts']} prompts{_greedy(found)}.\n"
        for found in documents
    )


@dataclass(frozen=True)
class Verdicts:
    """What is known of a method besides its figures.

    Attributes:
        audited: Method to the verdict of an audit.
        q_tested: Method to what the test of q looks at.
    """

    audited: dict[str, str]
    q_tested: dict[str, str]

    def of(self, name: str) -> tuple[str, str]:
        """The two cells of a speculator's line."""
        method = name.split(" ")[0]
        tested = "" if name == PLAIN else self.q_tested.get(method, "not in the test")
        return self.audited.get(method, "not run"), tested


def table(
    documents: list[dict[str, Any]], verdicts: Verdicts | None, *, are_all_speeds: bool = False
) -> str:
    """One line a speculator, in Markdown; a line of text if there is no document.

    Args:
        documents: Of `fairdraft bench speculators`, one a machine.
        verdicts: For two more columns; None for none.
        are_all_speeds: Tokens a second at every temperature, not only at the warmest.
    """
    if not documents:
        return "Not measured.\n"
    cells = [cell for found in documents for cell in found["cells"]]
    temperatures = sorted({cell["temperature"] for cell in cells})
    timed = temperatures if are_all_speeds else temperatures[-1:]
    counts = sorted({cell["num_drafts"] for cell in cells if cell["num_drafts"]})
    are_batches = any(_is_batch(found) for found in documents)
    rows = []
    for name in dict.fromkeys(cell["speculator"] for cell in cells):
        own = {c["temperature"]: c for d in reversed(documents) for c in _cells(d, name)}
        any_cell = next(iter(own.values()))
        row = [name if name == PLAIN else f"`{name}`"]
        row += [str(any_cell["num_drafts"] or "")] if len(counts) > 1 else []
        row += [f"{any_cell['parameters']:,}" if any_cell["parameters"] else "none"]
        row += [_length(own.get(temperature)) for temperature in temperatures]
        row += [_speed(found, name, t) for found in documents for t in timed]
        row += [_as_alone(documents, name)] if are_batches else []
        rows.append([*row, *([] if verdicts is None else verdicts.of(name))])
    columns = ["speculator", *(["K"] if len(counts) > 1 else []), "parameters"]
    drafts = f", K = {counts[0]}" if len(counts) == 1 else ""
    columns += [f"tokens a round{drafts}, T = {t:g}" for t in temperatures]
    columns += [
        f"{found['device_name']}: tokens/s at T = {t:g}, over plain"
        for found in documents
        for t in timed
    ]
    columns += ["texts as alone"] if are_batches else []
    columns += [] if verdicts is None else ["audit", "test of q"]
    return markdown_table(columns, rows)


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


def _is_batch(found: dict[str, Any]) -> bool:
    return found.get("batch", 1) > 1


def _requests(found: dict[str, Any]) -> str:
    tokens = f"of {found['num_tokens']} tokens"
    if not _is_batch(found):
        return f"{found['samples']} requests {tokens}"
    low, high = found["prompt_tokens"]
    return (
        f"{found['samples']} batches of {found['batch']} requests {tokens}, prompts of {low} to "
        f"{high}"
    )


def _greedy(found: dict[str, Any]) -> str:
    told = [cell["same_text"] for cell in found["cells"] if cell["speculator"] != PLAIN]
    told = [same for same in told if same is not None]
    if not told:
        return ""
    return f"; at T = 0 texts are plain decoding's with {sum(told)} of {len(told)} speculators"


def _length(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return ""
    if cell["interval"] is None or not cell["num_drafts"]:
        return f"{cell['acceptance_length']:.2f}"
    low, high = cell["interval"]
    return f"{cell['acceptance_length']:.2f} [{low:.2f}, {high:.2f}]"


def _speed(found: dict[str, Any], name: str, temperature: float) -> str:
    for cell in _cells(found, name):
        if cell["temperature"] == temperature:
            speed, ratio = cell["tokens_per_second"]["median"], cell["over_plain"]["median"]
            # four digits are recorded, and a few tokens a second have a use for three
            return f"{speed:.{0 if speed >= 100 else 1}f}, {ratio:.2f}"
    return ""


def _as_alone(documents: list[dict[str, Any]], name: str) -> str:
    """Texts that are the same alone, of those compared, over all temperatures, by machine."""
    some = [(found["batch"], _cells(found, name)) for found in documents if _is_batch(found)]
    return ", ".join(
        f"{sum(cell['num_same_alone'] for cell in cells)} of {batch * len(cells)}"
        for batch, cells in some
        if cells
    )


if __name__ == "__main__":
    main()
