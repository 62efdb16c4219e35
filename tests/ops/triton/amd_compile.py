"""What `test_amd.py` runs in a process of its own, where kernels are not the interpreter's.

It compiles kernels for an AMD GPU, and then three planted faults; the last line is JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench"))
gpu_code, gpu_compile = (importlib.import_module(name) for name in ("gpu_code", "gpu_compile"))

ARCH = "gfx942"


def faults_of(found: list[Any]) -> dict[str, list[str]]:
    """What is wrong with each kernel that was compiled."""
    return {k: [error] if error else gpu_code.faults(code) for k, code, error in found}


def asks_for_nvidia(calls: dict[str, Any]) -> dict[str, list[str]]:
    """Launches ask for a programmatic launch, waits and NVIDIA's logarithm."""
    from fairdraft.ops.triton import launch

    own = launch.has_pdl
    with gpu_compile.compiling(ARCH) as found:
        launch.has_pdl = lambda device: True
        try:
            calls["gumbel fast"]()
        finally:
            launch.has_pdl = own
        return faults_of(found)


def shares_by_one_wave_of_four(calls: dict[str, Any]) -> dict[str, list[str]]:
    """Programs that hand results to each other are cut up as on NVIDIA."""
    with gpu_compile.compiling(ARCH) as found:
        gpu_compile.launch_target.is_amd = lambda device: False
        calls["gumbel portable"]()
        return faults_of(found)


def fuses() -> dict[str, list[str]]:
    """A kernel of `portable` arithmetic may be contracted."""
    from fairdraft.ops.triton.filters import weights_kernel

    rows, row = torch.zeros(2, 600), torch.zeros(2)
    with gpu_compile.compiling(ARCH) as found:
        options: dict[str, Any] = {"BLOCK": 1024, "enable_fp_fusion": True}
        weights_kernel[(2,)](rows, row, row, rows, 600, 1, **options)
        return faults_of(found)


if __name__ == "__main__":
    compiled = gpu_compile.compile_all(ARCH, is_quick=True)
    by_name = dict(gpu_compile.quick_calls())
    planted = {
        "nvidia": asks_for_nvidia(by_name),
        "waves": shares_by_one_wave_of_four(by_name),
        "fusion": fuses(),
    }
    print(json.dumps({"compiled": compiled, "planted": planted}))
