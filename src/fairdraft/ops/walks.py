"""Which walk on the host decides by a rule, and which weights are its.

Axes: B rows, K drafts, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from fairdraft.ops import rules
from fairdraft.ops.chain_inputs import ChainInputs
from fairdraft.ops.lossy import LossyRule
from fairdraft.ops.verdict import DecisionWeights


def walk_of(rule: Any, is_cpu: bool) -> Callable[..., Any]:
    """What fills in the outputs of a batch, `walk(inputs, outputs)`."""
    if isinstance(rule, LossyRule):
        return partial(_lossy(is_cpu)[0], rule)
    if rule == "block":
        if is_cpu:
            from fairdraft.ops.cpu.block import verify_block_cpu as implementation
        else:
            from fairdraft.ops.block import verify_block_reference as implementation
    elif is_cpu:
        from fairdraft.ops.cpu.verify import verify_cpu as implementation
    else:
        from fairdraft.ops.chain import verify_reference as implementation
    return implementation


def weights_of(inputs: ChainInputs, rule: Any, is_cpu: bool) -> DecisionWeights:
    """The weights that a batch is decided by."""
    if isinstance(rule, LossyRule):
        fill = partial(_lossy(is_cpu)[1], rule)
    elif rule == "block":
        if is_cpu:
            from fairdraft.ops.cpu.block import block_weights_cpu as fill
        else:
            from fairdraft.ops.block import block_weights_reference as fill
    elif is_cpu:
        from fairdraft.ops.cpu.verify import decision_weights_cpu as fill
    else:
        from fairdraft.ops.chain import decision_weights_reference as fill
    count, num_rows, vocab_size = inputs.target.shape
    accept = np.zeros((count, num_rows - 1))
    law = np.zeros((count, num_rows, vocab_size))
    fill(inputs, accept, law)
    end = rules.ends_by_first_failure(accept)
    if rule == "block":
        end = np.where(inputs.is_matched[:, None], end, rules.ends_by_last_pass(accept))
    return DecisionWeights(torch.from_numpy(accept), torch.from_numpy(law), torch.from_numpy(end))


def _lossy(is_cpu: bool) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The walk of lossy rules, and its weights."""
    if is_cpu:
        from fairdraft.ops.cpu.lossy import lossy_weights_cpu, verify_lossy_cpu

        return verify_lossy_cpu, lossy_weights_cpu
    from fairdraft.ops.lossy_chain import lossy_weights_reference, verify_lossy_reference

    return verify_lossy_reference, lossy_weights_reference
