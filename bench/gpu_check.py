"""What must hold before `gpu_ops.py` times anything: kernels draw the reference's tokens.

`portable` equals the reference; `fast` may differ where the reference decided by a near tie.
Axes: B rows or requests, K drafts, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from gpu_cases import (
    CASES,
    Case,
    call_of,
    make_point_masses,
    sample_inputs,
    tree_inputs,
    verify_inputs,
)
from report import CheckError
from torch import Tensor

from fairdraft import ops
from fairdraft.ops import DeviceAddress
from fairdraft.ops.triton.workspace import Workspace

NEAR_TIE = 4e-6
SAMPLE_BATCH = 4
VERIFY_BATCH, VERIFY_DEPTH, VERIFY_VOCAB = 8, 3, 5000


def check_case(case: Case, vocab_size: int, device: torch.device) -> int:
    """Compares one case in both arithmetics; returns how many near ties `fast` decided otherwise.

    Raises:
        CheckError: If anything else differs.
    """
    generator = torch.Generator(device).manual_seed(11)
    if case.op == "sample":
        inputs = sample_inputs(SAMPLE_BATCH, vocab_size, case.dtype, generator)
    elif case.op == "tree":
        inputs = tree_inputs(VERIFY_BATCH, min(vocab_size, VERIFY_VOCAB), generator)
    else:
        inputs = verify_inputs(VERIFY_BATCH, min(vocab_size, VERIFY_VOCAB), generator, VERIFY_DEPTH)
        if case.drafts == "point mass":
            inputs = make_point_masses(inputs)
    call = call_of(case, inputs, Workspace(device))
    wanted = on_host(call)
    if case.method == "race":
        exact = call_of(case._replace(arithmetic="portable"), inputs, Workspace(device))()
        compare(f"{case.name}, portable", exact, wanted, may_tie=False)
    fast = call_of(case._replace(arithmetic="fast"), inputs, Workspace(device))()
    return compare(f"{case.name}, fast", fast, wanted, may_tie=True)


def on_host(call: Any) -> Any:
    """The reference's answer to the same call."""
    options = {name: _host(value) for name, value in call.keywords.items()}
    for name in ("workspace", "out", "draft_stats", "arithmetic"):
        options.pop(name, None)
    options["impl"] = "reference"
    return call.func(*(_host(value) for value in call.args), **options)


def _host(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.cpu()
    if isinstance(value, DeviceAddress):
        return DeviceAddress(**{name: _host(field) for name, field in vars(value).items()})
    return value


def compare(name: str, got: Any, wanted: Any, *, may_tie: bool) -> int:
    """Counts the rows that differ; each must have been decided by a near tie."""
    ids, expected = got.token_ids.cpu(), wanted.token_ids
    count = len(ids)
    if not torch.equal(got.error.cpu(), wanted.error):
        raise CheckError(f"{name}: errors {got.error.tolist()}, not {wanted.error.tolist()}")
    is_other = (ids != expected).reshape(count, -1).any(1)
    if isinstance(wanted, ops.Verdict):
        is_other |= got.num_accepted_tokens.cpu() != wanted.num_accepted_tokens
    is_decided = expected.reshape(count, -1) >= 0
    is_tie = ((wanted.margin.reshape(count, -1) < NEAR_TIE) & is_decided).any(1)
    wrong = is_other & ~(is_tie if may_tie else torch.zeros_like(is_tie))
    if wrong.any():
        rows = torch.nonzero(wrong).flatten()
        raise CheckError(
            f"{name}: rows {rows.tolist()} have tokens {ids[rows].tolist()}, the reference "
            f"{expected[rows].tolist()}"
        )
    return int(is_other.sum())


def check_all(vocab_size: int, device: torch.device, more: Sequence[Case] = ()) -> int:
    """Every case, and more; returns the near ties that `fast` decided otherwise."""
    return sum(check_case(case, vocab_size, device) for case in (*CHECKED, *more))


#: `portable` is checked along with each case, and has none of its own
CHECKED = tuple(case for case in CASES if case.arithmetic == "fast")
