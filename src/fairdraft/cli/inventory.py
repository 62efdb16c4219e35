"""What this machine and installation offer: versions, devices, backends, models."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairdraft.audit.processes import num_processors
from fairdraft.cli.document import library_versions
from fairdraft.cli.speculation import POCKET, POCKET_DRAFT, SMOLLM2

IMPLS = ("reference", "cpu", "triton")


@dataclass(frozen=True)
class Entry:
    """One line of the inventory.

    Attributes:
        name: What it is.
        ready: Whether it can be used.
        reason: Why, or what it is in figures.
    """

    name: str
    ready: bool
    reason: str


def versions() -> list[Entry]:
    """Lists the interpreter and the libraries that compute."""
    entries = [Entry("python", True, f"{platform.python_version()} on {platform.platform()}")]
    for name, found in library_versions().items():
        reason = found or "not installed"
        if name == "triton" and found is None:
            reason += " (only its kernels need it)"
        entries.append(Entry(name, found is not None, reason))
    return entries


def devices() -> list[Entry]:
    """Lists where models can run; loads torch."""
    import torch

    cores = num_processors()
    entries = [Entry("cpu", True, f"{cores} cores, torch uses {torch.get_num_threads()} threads")]
    if torch.version.cuda is None and torch.version.hip is None:
        entries.append(Entry("cuda", False, f"torch {torch.__version__} is built without CUDA"))
    elif not torch.cuda.is_available():
        entries.append(Entry("cuda", False, "torch is built for GPUs and finds none"))
    for index in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(index)
        entries.append(
            Entry(f"cuda:{index}", True, f"{found.name}, {found.total_memory / 2**30:.0f} GiB")
        )
    return entries


def backends() -> list[Entry]:
    """Lists the implementations of the ops and which one "auto" picks; loads torch."""
    from fairdraft.ops.dispatch import resolve_impl

    reasons = {
        "reference": "NumPy and torch, readable against the papers; defines every token",
        "cpu": "numba, the reference's tokens bit for bit",
        "triton": "GPU kernels",
    }
    entries = []
    for impl in IMPLS:
        try:
            resolve_impl(impl)  # type: ignore[arg-type]
            entries.append(Entry(impl, True, reasons[impl]))
        except ValueError as error:
            entries.append(Entry(impl, False, str(error)))
    chosen = resolve_impl("auto")
    skipped = [e.name for e in entries if not e.ready]
    why = f"{', '.join(skipped)} cannot run here" if skipped else "it is the fastest here"
    entries.append(Entry("auto", True, f"picks {chosen}: {why}"))
    return entries


def models() -> list[Entry]:
    """Lists the models that have names, the embedded ones read from their headers."""
    return [*_embedded(), _packaged()]


def speculators() -> list[Entry]:
    """Lists what drafts for the embedded target, and what method "auto" chooses from."""
    from fairdraft import pocket
    from fairdraft.engine.choice.candidates import embedded, from_text
    from fairdraft.engine.choice.config import AutoConfig

    entries = []
    for config, folder in embedded():
        name, ready = config["model"], (folder / "config.json").is_file()
        reason = f"method {config['method']}"
        entries.append(Entry(name, ready, reason + ("" if ready else ", not in this installation")))
    for config in from_text():
        entries.append(Entry(config["method"], True, "drafts for any target from its text"))
    ready = (pocket.path("target") / "config.json").is_file()
    usable = [entry.name for entry in entries if entry.ready]
    reason = (
        f"--method auto measures {', '.join(usable)} and plain decoding for "
        f"{AutoConfig.budget_seconds:g} s at load, takes the fastest with its K, and says why"
    )
    return [*entries, Entry("auto", ready, reason)]


def what_runs() -> list[Entry]:
    """Says what a bare `fairdraft generate` does, and why."""
    ready = all(entry.ready for entry in _embedded())
    reason = f"{POCKET} with draft {POCKET_DRAFT}, K = 4, float32 on cpu"
    reason += ": embedded, nothing to download" if ready else ": not in this installation"
    return [Entry("generate", ready, reason)]


#: the whole inventory, part by part; the first needs no torch, so that it shows at once
SECTIONS: dict[str, Callable[[], list[Entry]]] = {
    "versions": versions,
    "devices": devices,
    "backends": backends,
    "models": models,
    "speculators": speculators,
    "what runs": what_runs,
}


def _embedded() -> list[Entry]:
    from fairdraft import pocket

    return [
        _model(name, pocket.path(role))
        for name, role in ((POCKET, "target"), (POCKET_DRAFT, "draft"))
    ]


def _packaged() -> Entry:
    from fairdraft.models import smollm2

    try:
        file = smollm2.packaged_file()
    except ValueError as error:
        return Entry(SMOLLM2, False, str(error))
    return Entry(SMOLLM2, True, f"{file.name}, copies in {smollm2.cache_folder()}")


def _model(name: str, folder: Path) -> Entry:
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))
        weights = folder / "model.safetensors"
        with weights.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header: dict[str, Any] = json.loads(file.read(size))
    except OSError as error:
        return Entry(name, False, f"{error.strerror}: {error.filename}")
    tensors = [entry for key, entry in header.items() if key != "__metadata__"]
    count = sum(_product(entry["shape"]) for entry in tensors)
    kinds = "/".join(sorted({entry["dtype"] for entry in tensors}))
    return Entry(
        name,
        True,
        f"{config.get('model_type')}, {count / 1e6:.2f}M parameters, "
        f"{weights.stat().st_size / 1e6:.1f} MB {kinds}, vocabulary {config.get('vocab_size')}, "
        f"context {config.get('max_position_embeddings')}",
    )


def _product(shape: list[int]) -> int:
    total = 1
    for side in shape:
        total *= side
    return total
