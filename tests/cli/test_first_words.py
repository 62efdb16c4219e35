"""What stands on the screen before anything slow has happened."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import fairdraft
from fairdraft.audit.processes import completed
from fairdraft.cli.compiling import MESSAGE, compiling_is_said

SRC = Path(fairdraft.__file__).resolve().parent.parent
#: runs the command line where importing any of these ends it
LIGHT = (
    "import sys; sys.path.insert(0, {src!r}); sys.argv = ['fairdraft', *{arguments!r}]; "
    "sys.modules.update(dict.fromkeys(('torch', 'transformers', 'numba'))); "
    "from fairdraft.cli import main; main()"
)


def run_without_libraries(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = LIGHT.format(src=str(SRC), arguments=arguments)
    return subprocess.run(
        [sys.executable, "-c", code],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "first"),
    [
        (("generate",), "loading pocket (draft pocket-draft, K = 4) as float32 on cpu"),
        (("generate", "m", "--draft", "d"), "loading m (draft d, K = 4) as float32 on cpu"),
        (("generate", "--draft", "pocket-mtp"), "loading pocket (mtp head pocket-mtp, K = 4)"),
        (("audit", "engine", "m", "--draft", "d"), "loading m (draft d, K = 4) as float32 on cpu"),
        (("audit", "hf"), "loading pocket, assisted by pocket-draft, float32"),
        (("bench", "speculators"), "loading pocket as float32 on cpu"),
        (("train", "mtp", "--data", "self", "-o", "out"), "loading pocket on cpu"),
        (("audit", "kernels"), "loading\n"),
    ],
)
def test_what_is_loaded_is_said_before_any_library_is(
    arguments: tuple[str, ...], first: str
) -> None:
    result = run_without_libraries(*arguments)
    assert result.returncode == 70 and "ModuleNotFoundError" in result.stderr
    assert result.stderr.startswith(first), result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("generate", "--method", "foo"), "--method 'foo' is not known"),
        (("generate", "-k", "0"), "--method none"),
        (("audit", "engine", "--method", "prediction"), "no draft would be judged"),
        (("generate", "--draft", "d", "--file", "none"), "--file none: No such file"),
        (("bench", "speculators", "-s", "auto"), "it chooses among speculators"),
        (("train", "mtp", "--data", "none", "-o", "out"), "there is no such file"),
        (("train", "mtp", "--data", "self", "-o", __file__), "is a file; name a folder"),
        (("train", "mtp", "--data", "self", "--data", "a", "-o", "out"), "stands alone"),
        (("convert", "none", "out"), "it has no config.json"),
    ],
)
def test_what_needs_no_library_is_refused_without(arguments: tuple[str, ...], message: str) -> None:
    result = run_without_libraries(*arguments)
    assert result.returncode == 2 and message in result.stderr, result.stderr


def test_info_shows_versions_before_it_loads_torch() -> None:
    result = run_without_libraries("info")
    assert result.returncode == 70 and result.stdout.startswith("versions\n  python")


def test_only_a_compilation_is_said_and_once(capsys: pytest.CaptureFixture[str]) -> None:
    numba = pytest.importorskip("numba")
    with compiling_is_said():
        known = numba.njit(lambda x: x + 1)
        for value in (1, 1.0):
            known(value)
    known(1j)
    with compiling_is_said():
        known(1j)
    assert capsys.readouterr().err == MESSAGE + "\n"


def test_kernels_from_the_cache_on_disk_are_not_a_compilation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    numba = pytest.importorskip("numba")
    (tmp_path / "kept_kernel.py").write_text("def double(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    from kept_kernel import double  # pyright: ignore[reportMissingImports]

    said = []
    for _ in range(2):
        with compiling_is_said():
            assert numba.njit(cache=True)(double)(3) == 6
        said.append(capsys.readouterr().err)
    assert said == [MESSAGE + "\n", ""]


def test_what_a_child_compiles_is_said_and_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba")
    (tmp_path / "kept_in_a_child.py").write_text(
        "import numba\n\n\ndef double(x):\n    return 2 * x\n\n\n"
        "def doubled(x):\n    return numba.njit(cache=True)(double)(x)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    from kept_in_a_child import doubled  # pyright: ignore[reportMissingImports]

    with compiling_is_said():
        assert sorted(completed(doubled, [(3,), (4,)], 2)) == [(0, 6), (1, 8)]
    assert capsys.readouterr().err == MESSAGE + "\n"


def test_help_is_not_broken_in_the_middle_of_a_line() -> None:
    """Help keeps the line breaks of a docstring, so these must fit a terminal of 80 columns."""
    import typer

    from fairdraft.cli.app import app

    wide = []

    def look(command, name: str) -> None:
        for line in (command.help or "").splitlines():
            # one space on either side; a paragraph of a single line is broken where it fits
            if len(line) > 78 and line != (command.help or "").splitlines()[0]:
                wide.append((name, line))
        for below, part in getattr(command, "commands", {}).items():
            look(part, f"{name} {below}")

    look(typer.main.get_command(app), "fairdraft")
    assert wide == []
