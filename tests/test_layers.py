"""The rooms import in one direction, and no file or function outgrows its budget."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "fairdraft"
# a room may import itself and every room of a smaller number
RANKS = {
    "noise": 0,
    "stats": 0,
    "pocket": 0,
    "ops": 1,
    "models": 2,
    "speculators": 3,
    "engine": 4,
    "audit": 5,
    "training": 5,
    "testing": 6,
    "server": 6,
    "cli": 7,
}
PURE_ROOMS = {"stats": {"numpy"}, "noise": {"numpy", "numba", "llvmlite", "triton"}}
NOISY_SPECULATOR_FILES = {"sampler.py"}
MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 60

MODULES = sorted(PACKAGE.rglob("*.py"))
ROOM_MODULES = [path for path in MODULES if path.parent != PACKAGE]


def module_id(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def imported_names(tree: ast.AST, path: Path) -> Iterator[str]:
    """Absolute dotted name of everything that the file imports, at any depth."""
    package = ["fairdraft", *path.relative_to(PACKAGE).parent.parts]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            if stem != "fairdraft":
                yield stem
            yield from (f"{stem}.{alias.name}" for alias in node.names)


def layer_faults(source: str, path: Path) -> list[str]:
    """Sentences that say which imports of the file point the wrong way."""
    room = path.relative_to(PACKAGE).parts[0]
    if room not in RANKS:
        return [f"room {room} has no rank"]
    faults = []
    for name in sorted(set(imported_names(ast.parse(source), path))):
        parts = name.split(".")
        if parts[0] != "fairdraft":
            allowed = PURE_ROOMS.get(room)
            if allowed is not None and parts[0] not in allowed | sys.stdlib_module_names:
                faults.append(f"{room} imports {name}")
            continue
        other = parts[1] if len(parts) > 1 else ""
        if other not in RANKS:
            if room != "cli" and other != "__version__":
                faults.append(f"{room} imports {name}, which loads the engine")
        elif other != room and RANKS[other] >= RANKS[room]:
            faults.append(f"{room} imports {name}")
        elif (room, other) == ("speculators", "noise") and path.name not in NOISY_SPECULATOR_FILES:
            faults.append(f"speculator {path.name} imports {name}")
    return faults


def code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of the body, signature and docstring apart."""
    first = node.body[0]
    if ast.get_docstring(node, clean=False) is not None:
        begin = (first.end_lineno or first.lineno) + 1
    else:
        begin = first.lineno
    return (node.end_lineno or node.lineno) - begin + 1


@pytest.mark.parametrize("path", ROOM_MODULES, ids=module_id)
def test_imports_point_one_way(path: Path) -> None:
    assert layer_faults(path.read_text(encoding="utf-8"), path) == []


@pytest.mark.parametrize("path", MODULES, ids=module_id)
def test_module_and_functions_stay_in_budget(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= MAX_MODULE_LINES, "split the module by noun"
    long = {
        node.name: code_lines(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and code_lines(node) > MAX_FUNCTION_LINES
    }
    assert long == {}


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("ops/sample.py", "from fairdraft.engine import LLM"),
        ("ops/sample.py", "def f():\n    import fairdraft.models.load"),
        ("noise/philox.py", "import torch"),
        ("noise/philox.py", "from fairdraft import stats"),
        ("stats/chi_square.py", "import scipy.stats"),
        ("stats/chi_square.py", "from ..noise import Stream"),
        ("engine/llm.py", "from fairdraft.audit import report"),
        ("engine/llm.py", "from fairdraft import LLM"),
        ("speculators/ngram.py", "from fairdraft.noise import Stream"),
        ("unheard_of/file.py", ""),
    ],
)
def test_planted_import_is_refused(file: str, source: str) -> None:
    assert layer_faults(source, PACKAGE / file) != []


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("ops/sample.py", "from fairdraft.noise import Stream\nfrom .filters import filter_logits"),
        ("speculators/sampler.py", "from fairdraft.noise import address"),
        ("cli/app.py", "import fairdraft\nfrom fairdraft.engine import LLM"),
        ("models/load.py", "from fairdraft import pocket"),
    ],
)
def test_lawful_import_is_accepted(file: str, source: str) -> None:
    assert layer_faults(source, PACKAGE / file) == []
