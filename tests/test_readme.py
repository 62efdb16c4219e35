"""The README and the pages of docs/ are true: Python runs, commands, files and links exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer.main

from fairdraft import pocket
from fairdraft.cli.app import app

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str, page: Path = ROOT / "README.md") -> list[str]:
    text = page.read_text(encoding="utf-8")
    return [body for name, body in FENCE.findall(text) if name == language]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def command_options(words: list[str]) -> set[str]:
    """Every spelling of every option of the subcommand that a line names."""
    command = typer.main.get_command(app)
    for word in words:
        if not hasattr(command, "commands"):
            break
        command = command.commands[word]  # type: ignore[attr-defined]
    spellings = {option for parameter in command.params for option in parameter.opts}
    return spellings | {"--help", "-h"}


def fault_of_command(line: str) -> str | None:
    """Says what is wrong with a shell line, or None."""
    words = shlex.split(line, comments=True)
    if not words:
        return None
    if words[0] == "make":
        unknown = [word for word in words[1:] if "=" not in word and word not in make_targets()]
        return f"no make target {unknown}" if unknown else None
    if words[0] == "fairdraft":
        used = {word for word in words[2:] if word.startswith("-")}
        unknown = sorted(used - command_options(words[1:]))
        return f"no option {unknown}" if unknown else None
    if words[0] == "python":
        return None if (ROOT / words[1]).is_file() else f"no file {words[1]}"
    return None if words[:2] == ["pip", "install"] else f"unknown command {words[0]}"


@pytest.mark.skipif(
    not (pocket.path("target") / "config.json").is_file(), reason="no embedded models"
)
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_python_blocks_of_a_page_run_in_order(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one namespace and a folder of their own, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": page.stem}
    for number, source in enumerate(blocks("python", page), start=1):
        exec(compile(source, f"{page.name}, block {number}", "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_there_are_python_and_shell_blocks() -> None:
    assert len(blocks("python")) >= 2 and len(blocks("sh")) >= 2


def test_shell_lines_name_commands_that_exist() -> None:
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    lines += re.findall(r"^    (make .*)$", README, re.MULTILINE)
    lines += re.findall(r"`(make [^`]*)`", README)
    assert len(lines) > 5
    assert {line: fault for line in lines if (fault := fault_of_command(line))} == {}


@pytest.mark.parametrize(
    "line", ["make jump", "fairdraft generate --bogus", "python bench/nothing.py", "rm -rf /"]
)
def test_wrong_shell_line_is_caught(line: str) -> None:
    assert fault_of_command(line) is not None


def test_layout_names_folders_that_exist() -> None:
    (layout,) = [block for block in blocks("") if block.startswith("src/")]
    folder = ROOT
    for line in layout.splitlines():
        name = line.split()[0]
        folder = ROOT / "src" / "fairdraft" if line.startswith("  ") else ROOT
        assert (folder / name).is_dir(), name


def test_rooms_are_all_in_the_layout() -> None:
    rooms = {path.parent.name for path in (ROOT / "src" / "fairdraft").glob("*/__init__.py")}
    assert {room for room in rooms if f"  {room}/" not in README} == set()


def test_named_tests_and_documents_exist() -> None:
    named = set(re.findall(r"`((?:tests|docs|bench)/[\w./-]+)`", README))
    missing = sorted(path for path in named if not (ROOT / path).exists())
    assert missing == []
