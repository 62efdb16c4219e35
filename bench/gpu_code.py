"""What a kernel that was compiled for AMD asks of the hardware, and what it must not ask."""

from __future__ import annotations

import re
from typing import Any

#: bytes that the waves of a program can share on all AMD GPUs that are compiled for
MOST_SHARED = 1 << 16
#: fused multiply-adds that an IEEE division of float32 takes there
FMAS_OF_A_DIVISION = 5


def faults(code: Any) -> list[str]:
    """Why a kernel would not load, or not give the numbers that it is written to give.

    Args:
        code: A compiled kernel of Triton's HIP backend.
    """
    ir, options = code.asm["llir"], code.metadata
    found = [f"calls {name}" for name in foreign_functions(ir)]
    if re.search(r"\basm (sideeffect )?\"", ir):
        found.append("has inline assembly")
    if options.enable_fp_fusion or re.search(
        r"\b(contract|reassoc|afn|arcp|fast) [^@\n]*float", ir
    ):
        found.append("lets the compiler fuse or reorder floating point")
    written, fused = fused_multiply_adds(ir, code.asm["amdgcn"])
    if fused != written:
        found.append(f"has {fused} fused multiply-adds where {written} are written")
    if is_sharing(ir) and options.num_warps > 1:
        found.append(f"hands results to other programs by one of {options.num_warps} waves")
    if options.shared > MOST_SHARED:
        found.append(f"shares {options.shared} bytes of {MOST_SHARED}")
    return found


def foreign_functions(ir: str) -> list[str]:
    """Functions that are called and are neither in the module nor AMD's or LLVM's own."""
    names = re.findall(r"^declare .*?@\"?([\w.$]+)", ir, re.MULTILINE)
    return [name for name in names if not name.startswith("llvm.") or "nvvm" in name]


def fused_multiply_adds(ir: str, assembly: str) -> tuple[int, int]:
    """How many of float32 are written, divisions taken apart, and how many the code holds."""
    calls = re.findall(r"call .*@llvm\.fma\.(?:v(\d+))?f32\(", ir)
    divisions = len(re.findall(r"\bv_div_fmas_f32", assembly))
    written = sum(int(width or 1) for width in calls) + FMAS_OF_A_DIVISION * divisions
    single = re.findall(r"\bv_(?:fma|fmac|fmaak|fmamk|mac|mad)_f32", assembly)
    single += re.findall(r"\bv_dual_(?:fmac|fmaak|fmamk)_f32", assembly.replace("::", "\n"))
    return written, len(single) + 2 * len(re.findall(r"\bv_pk_fma_f32", assembly))


def is_sharing(ir: str) -> bool:
    """Whether programs of a launch count on what others of it stored."""
    return bool(re.search(r"\batomicrmw .* (acq_rel|acquire|release|seq_cst)\b", ir))


def usage(code: Any) -> dict[str, int]:
    """Vector registers of a lane, how many of them do not fit, and bytes that waves share."""
    assembly = code.asm["amdgcn"]
    return {
        "warps": code.metadata.num_warps,
        "registers": _field(assembly, "vgpr_count"),
        "spilled": _field(assembly, "vgpr_spill_count"),
        "shared": code.metadata.shared,
    }


def _field(assembly: str, name: str) -> int:
    found = re.search(rf"\.{name}:\s+(\d+)", assembly)
    return int(found[1]) if found else 0
