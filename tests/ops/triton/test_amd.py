"""Kernels compile for an AMD GPU that nobody has here, and ask for nothing that it lacks.

This shows what is asked for, not what comes out: no AMD device has run them.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from triton.backends import backends

from fairdraft.ops.triton import launch
from fairdraft.ops.triton.target import sharing_warps

ROOT = Path(__file__).resolve().parents[3]
GPU = torch.device("cuda", 0)
#: what a run for every change leaves to `bench/gpu_compile.py`
SLOW = ["maxima_kernel", "pick_filtered_kernel"]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if "amd" not in backends:
        pytest.skip("this Triton has no HIP backend")
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env |= {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    # nothing that was compiled before may answer
    env["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    script = Path(__file__).with_name("amd_compile.py")
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_kernels_compile_and_ask_for_nothing_of_nvidia(compiled: dict[str, Any]) -> None:
    result = compiled["compiled"]
    assert result["faults"] == []
    assert result["left_out"] == SLOW and result["kernels"] == 19


def test_programs_that_share_results_are_of_one_wave(compiled: dict[str, Any]) -> None:
    kernels = {"chain_kernel", "lossy_kernel", "mass_kernel", "tree_kernel", "flat_kernel"}
    # sums tiles in the order of `chain_kernel`
    kernels.add("read_kernel")
    waves = {v["warps"] for v in compiled["compiled"]["versions"] if v["kernel"] in kernels}
    assert waves == {1}


def test_planted_faults_are_found(compiled: dict[str, Any]) -> None:
    """NVIDIA's launch options, programs that share by one wave of four, and fused arithmetic."""
    planted = compiled["planted"]
    assert all("launch_pdl" in faults[0] for faults in planted["nvidia"].values())
    assert "by one of 4 waves" in planted["waves"]["flat_kernel"][0]
    assert "fuse" in planted["fusion"]["weights_kernel"][0]


def code_of(ir: str = "", assembly: str = "", **options: Any) -> Any:
    defaults = {"enable_fp_fusion": False, "num_warps": 4, "shared": 0}
    metadata = SimpleNamespace(**defaults | options)
    return SimpleNamespace(asm={"llir": ir, "amdgcn": assembly}, metadata=metadata)


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (code_of("declare float @__nv_fast_log2f(float)"), "calls __nv_fast_log2f"),
        (code_of("declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()"), "calls llvm.nvvm"),
        (code_of('call void asm sideeffect "griddepcontrol.wait;", ""()'), "inline assembly"),
        (code_of("%3 = fadd contract float %1, %2"), "fuse or reorder"),
        (code_of("", "v_fma_f32 v0, v1, v2, v3"), "1 fused multiply-adds where 0 are written"),
        (code_of("%1 = call <2 x float> @llvm.fma.v2f32(%2)"), "0 .* where 2 are written"),
        (code_of('%1 = atomicrmw add ptr %2, i32 1 syncscope("agent") acq_rel'), "one of 4 waves"),
        (code_of(shared=1 << 17), "shares 131072 bytes"),
    ],
)
def test_each_fault_is_named(code: Any, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "bench")
    faults = importlib.import_module("gpu_code").faults
    assert faults(code_of("%1 = call float @llvm.fma.f32(%2)", "v_fmac_f32_e32 v0, v1, v2")) == []
    with pytest.raises(AssertionError, match=fault):
        assert not faults(code), faults(code)


@pytest.mark.parametrize(("hip", "warps"), [(None, 4), ("6.4", 1)])
def test_launches_know_amd_by_torch(
    hip: str | None, warps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch calls an AMD device "cuda" and gives its `gfx942` a capability of 9.4."""
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 4))
    assert sharing_warps(GPU, 4) == warps
    assert sharing_warps(torch.device("cpu"), 4) == 4
    assert launch.has_pdl.__wrapped__(GPU) == (hip is None)
