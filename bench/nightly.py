"""What is too long for the tests, part after part: what `make nightly` runs.

    python bench/nightly.py [--only PART ...] [--list] [--record]

A part that fails does not keep the others from running. Parts print what they print; between them,
and at the end, stand the seconds that each took, those so far, and about how many are left. Exits 1
if a part failed, 130 if it was interrupted. The last line of stdout is JSON; `--record` keeps each
part in `results/nightly.json` as it ends, and writes the table of `docs/testing.md` from it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from blocks import fill, markdown_table
from conditions import ROOT, conditions, describe

INTERRUPTED = 130
#: seconds that an interrupted part may take to end by itself
GRACE = 10.0
PAGE = ROOT / "docs" / "testing.md"
RECORDED = ROOT / "bench" / "results" / "nightly.json"


@dataclass(frozen=True)
class Part:
    """One command of the night.

    Attributes:
        name: Short and unique.
        title: What it asks.
        arguments: Of Python.
        about: Seconds on two idle cores, for the time left; corrected by the parts that are done.
    """

    name: str
    title: str
    arguments: tuple[str, ...]
    about: float


PARTS = (
    Part(
        "error-rates",
        "how often the auditor is wrong",
        (str(ROOT / "bench" / "audit_error_rates.py"),),
        400,
    ),
    Part(
        "faults", "planted faults, each found in time", ("-m", "fairdraft", "audit", "faults"), 180
    ),
    Part(
        "same-text",
        "texts with and without drafts under common noise",
        (str(ROOT / "bench" / "same_text.py"),),
        90,
    ),
    Part(
        "matrix",
        "every parameter by rule and drafts, through the engine",
        (str(ROOT / "bench" / "matrix.py"),),
        1100,
    ),
    Part("kernels", "the published bug in our ops", ("-m", "fairdraft", "audit", "kernels"), 120),
)


@dataclass(frozen=True)
class Done:
    """A part that ended.

    Attributes:
        part: Which.
        code: Its exit code.
        seconds: It took.
    """

    part: Part
    code: int
    seconds: float

    def __str__(self) -> str:
        said = "ok" if not self.code else f"FAILED, exit code {self.code}"
        return f"{self.part.name}: {said}, {clock(self.seconds)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    names = [part.name for part in PARTS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="PART", help="these alone")
    parser.add_argument("--list", action="store_true", help="print the parts, and run nothing")
    parser.add_argument("--record", action="store_true", help="keep parts in results/nightly.json")
    given = parser.parse_args()
    chosen = [part for part in PARTS if given.only is None or part.name in given.only]
    if given.list:
        for part in chosen:
            print(f"{part.name}: {part.title}, about {clock(part.about)} on two idle cores")
        return 0
    before = conditions()
    keep = (lambda each: record(each, before)) if given.record else (lambda each: None)
    done, is_whole = run(chosen, execute, keep)
    print(json.dumps(document(done, before, is_whole)))
    if not is_whole:
        return INTERRUPTED
    return int(any(each.code for each in done))


def execute(part: Part) -> int:
    """Runs a part in a process group of its own; returns its exit code.

    Raises:
        KeyboardInterrupt: After the whole group was interrupted too, and none of it is left.
    """
    command = [sys.executable, *part.arguments]
    with subprocess.Popen(command, cwd=ROOT, process_group=0) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                process.wait(GRACE)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise


def run(
    parts: Sequence[Part], execute: Callable[[Part], int], keep: Callable[[Done], None]
) -> tuple[list[Done], bool]:
    """Runs parts one after the other, and says how far they are.

    Args:
        parts: In order.
        execute: Runs one; returns its exit code.
        keep: Called with each that ended.

    Returns:
        The parts that ended, and whether all did.
    """
    done: list[Done] = []
    for number, part in enumerate(parts, 1):
        _say(
            f"part {number} of {len(parts)}, {part.name}: {part.title}; "
            f"{clock(_total(done))} so far, {clock(seconds_left(done, parts))} left, about"
        )
        begin = time.perf_counter()
        try:
            code = execute(part)
        except KeyboardInterrupt:
            _say(f"{part.name}: interrupted after {clock(time.perf_counter() - begin)}")
            break
        done.append(Done(part, code, time.perf_counter() - begin))
        keep(done[-1])
        _say(str(done[-1]))
    _say("\n".join(["", *map(str, done), f"total: {clock(_total(done))}"]))
    return done, len(done) == len(parts)


def seconds_left(done: Sequence[Done], parts: Sequence[Part]) -> float:
    """About how long the rest takes, at the pace of what is done."""
    about = sum(each.part.about for each in done)
    pace = _total(done) / about if done else 1.0
    return pace * sum(part.about for part in parts[len(done) :])


def document(done: Sequence[Done], before: dict[str, Any], is_whole: bool) -> dict[str, Any]:
    """What the night came to, as plain values."""
    return {
        "benchmark": "nightly",
        "is_correct": is_whole and not any(each.code for each in done),
        "conditions": before,
        "seconds": round(_total(done), 1),
        "parts": [_plain(each) for each in done],
    }


def record(each: Done, before: dict[str, Any]) -> None:
    """Keeps a part in the file and on the page, in place of what an earlier night said of it."""
    kept = {part["name"]: part for part in recorded()}
    kept[each.part.name] = _plain(each) | {"conditions": before}
    parts = [kept[part.name] for part in PARTS if part.name in kept]
    lines = ",\n".join(f"  {json.dumps(part)}" for part in parts)
    RECORDED.write_text(f'{{"benchmark": "nightly", "parts": [\n{lines}\n]}}\n', encoding="utf-8")
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def recorded() -> list[dict[str, Any]]:
    """The parts that are recorded."""
    if not RECORDED.exists():
        return []
    return json.loads(RECORDED.read_text(encoding="utf-8"))["parts"]


def filled(page: str) -> str:
    """The page with its table of parts written anew."""
    kept = {part["name"]: part for part in recorded()}
    lines = []
    for part in PARTS:
        command = " ".join(name.removeprefix(f"{ROOT}/") for name in part.arguments)
        found, time_taken = "not recorded", "-"
        if part.name in kept:
            code, seconds = kept[part.name]["code"], kept[part.name]["seconds"]
            found, time_taken = f"FAILS, exit code {code}" if code else "passes", clock(seconds)
        lines.append((f"`{part.name}`", part.title, f"`python {command}`", found, time_taken))
    table = markdown_table(
        ("part", "what it asks", "command", "verdict", "took"), lines, are_numbers=False
    )
    where = dict.fromkeys(f"{describe(part['conditions'])}." for part in kept.values())
    total = clock(sum(part["seconds"] for part in kept.values()))
    told = f"\nIn all {total}. {' '.join(where)}\n" if kept else ""
    return fill(page, {"nightly": table + told}, PAGE.name)


def _plain(each: Done) -> dict[str, Any]:
    return {"name": each.part.name, "code": each.code, "seconds": round(each.seconds, 1)}


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def _total(done: Sequence[Done]) -> float:
    return sum(each.seconds for each in done)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
