"""What is too long for the tests, part after part: what `make nightly` runs.

    python bench/nightly.py [--only PART ...] [--list]

A part that fails does not keep the others from running. Parts print what they print; between them,
and at the end, stand the seconds that each took, those so far, and about how many are left. Exits 1
if a part failed, 130 if it was interrupted. The last line of stdout is JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from conditions import ROOT, conditions

INTERRUPTED = 130


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
        900,
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
    given = parser.parse_args()
    chosen = [part for part in PARTS if given.only is None or part.name in given.only]
    if given.list:
        for part in chosen:
            print(f"{part.name}: {part.title}, about {clock(part.about)} on two idle cores")
        return 0
    before = conditions()
    done, is_whole = run(chosen, execute)
    print(json.dumps(document(done, before, is_whole)))
    if not is_whole:
        return INTERRUPTED
    return int(any(each.code for each in done))


def execute(part: Part) -> int:
    """Runs a part as a process of its own; returns its exit code."""
    return subprocess.run([sys.executable, *part.arguments], cwd=ROOT, check=False).returncode


def run(parts: Sequence[Part], execute: Callable[[Part], int]) -> tuple[list[Done], bool]:
    """Runs parts one after the other, and says how far they are.

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
        "parts": [
            {"name": each.part.name, "code": each.code, "seconds": round(each.seconds, 1)}
            for each in done
        ],
    }


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
