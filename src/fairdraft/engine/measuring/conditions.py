"""What a figure depends on besides the code: machine, versions, commit, threads."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

#: of a checkout; an installed package has none
_ROOT = Path(__file__).resolve().parents[4]
PACKAGES = ("torch", "transformers", "numpy", "numba")


def conditions() -> dict[str, Any]:
    """Machine, versions and commit, as they are now."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "l3_cache": _l3_cache(),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "commit": _commit(),
    }


def describe(state: dict[str, Any]) -> str:
    """One line for a person."""
    versions = ", ".join(f"{name} {state[name]}" for name in PACKAGES)
    return (
        f"{state['cpu']}, {state['cores']} cores, L3 {state['l3_cache']}, load "
        f"{state['load_average']}; Python {state['python']}, {versions}; commit {state['commit']}"
    )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _l3_cache() -> str | None:
    try:
        return Path("/sys/devices/system/cpu/cpu0/cache/index3/size").read_text().strip()
    except OSError:
        return None


def _commit() -> str | None:
    """The short commit of a checkout, with a plus if the sources differ from it."""
    is_checkout = (_ROOT / "pyproject.toml").is_file() and (_ROOT / "src" / "fairdraft").is_dir()
    commit = _git("rev-parse", "--short", "HEAD") if is_checkout else None
    if commit is None:
        return None
    return commit + "+" * bool(_git("status", "--porcelain", "--", "src", "bench/*.py"))


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=_ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
