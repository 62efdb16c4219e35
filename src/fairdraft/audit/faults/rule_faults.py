"""Faults of the verification rule: the test of a draft, and what replaces it.

They replace a formula of `ops/rules.py`, which the reference walk reads, or change the inputs that
either walk reads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fairdraft.audit.faults.fault import Fault, Function, Planting
from fairdraft.noise import philox4x32

__all__ = ["RULE_FAULTS"]

INPUTS = "fairdraft.ops.verify._chain_inputs"


def _kept_at_half(original: Function, planting: Planting) -> Function:
    return lambda p_x, q_x, u: original(2 * p_x, q_x, u)


def _swapped(original: Function, planting: Planting) -> Function:
    return lambda p_x, q_x, u: original(q_x, p_x, u)


def _zero_coin(original: Function, planting: Planting) -> Function:
    """Uniforms of 6 bits that may be 0, and a test that 0 <= 0 passes."""
    return lambda p_x, q_x, u: int(u * 64) / 64 * q_x <= p_x


def _from_p(original: Function, planting: Planting) -> Function:
    return lambda p, q: p


def _from_q(original: Function, planting: Planting) -> Function:
    return lambda p, q: q


def _softmaxed(original: Function, planting: Planting) -> Function:
    return lambda p, q: np.exp(original(p, q))


def _clamped(original: Function, planting: Planting) -> Function:
    return lambda p, q: np.maximum(original(p, q), 0.01)


def _uncapped(original: Function, planting: Planting) -> Function:
    return lambda rho, p_x, q_x: rho * p_x / q_x


def _leaked(inputs: Any, chance: float) -> Any:
    """A draft whose coin falls is told q = p, so it stands."""
    words = philox4x32(inputs.accept_at.counter, inputs.accept_at.key)
    # the second half of the block, which the acceptance test does not read
    is_leaked = (words[:, 2] < chance * 2.0**32).reshape(inputs.token_ids.shape)
    draft = np.where(is_leaked[..., None], inputs.target[:, :-1], inputs.draft)
    return inputs._replace(draft=draft)


def _leaks(chance: float) -> Any:
    def make(original: Function, planting: Planting) -> Function:
        def chain_inputs(*args: Any) -> Any:
            inputs = original(*args)
            return _leaked(inputs, chance) if len(inputs.draft) else inputs

        return chain_inputs

    return make


def _cut_at_masked(original: Function, planting: Planting) -> Function:
    def chain_inputs(*args: Any) -> Any:
        inputs = original(*args)
        count, depth = inputs.token_ids.shape
        if not depth:
            return inputs
        at = np.clip(inputs.token_ids, 0, inputs.target.shape[2] - 1)
        logit = np.take_along_axis(inputs.target[:, :-1], at[..., None], axis=2)[..., 0]
        is_masked = (logit == -np.inf) | inputs.is_forbidden
        first = np.where(is_masked.any(1), is_masked.argmax(1), depth)
        return inputs._replace(num_drafts=np.minimum(inputs.num_drafts, first))

    return chain_inputs


def _cut_at_forbidden(original: Function, planting: Planting) -> Function:
    def chain_inputs(*args: Any) -> Any:
        inputs = original(*args)
        marked, depth = inputs.is_forbidden, inputs.token_ids.shape[1]
        first = np.where(marked.any(1), marked.argmax(1), depth) if depth else 0
        return inputs._replace(num_drafts=np.minimum(inputs.num_drafts, first))

    return chain_inputs


def _softmaxed_point_mass(original: Function, planting: Planting) -> Function:
    def chain_inputs(*args: Any) -> Any:
        inputs = original(*args)
        return inputs._replace(is_point_mass=np.zeros_like(inputs.is_point_mass))

    return chain_inputs


RULE_FAULTS = (
    Fault(
        "lenient-test",
        "a draft is kept with chance 2 p / q, so it stands where p is at least half of q",
        "fairdraft.ops.rules.is_accepted",
        _kept_at_half,
        "accept",
    ),
    Fault(
        "swapped-ratio",
        "a draft is kept with chance q / p in place of p / q",
        "fairdraft.ops.rules.is_accepted",
        _swapped,
        "accept",
    ),
    Fault(
        "zero-coin",
        "the test is u q <= p with a coarse u that may be 0, so drafts with p = 0 can stand",
        "fairdraft.ops.rules.is_accepted",
        _zero_coin,
        "accept",
        "sglang #35771",
    ),
    Fault(
        "draft-leak",
        "one draft in ten stands without a test",
        INPUTS,
        _leaks(0.1),
        "accept",
    ),
    Fault(
        "all-accepted",
        "every draft stands, as with a uniform that is always 0",
        INPUTS,
        _leaks(1.0),
        "accept",
        "vllm-ascend #13766",
    ),
    Fault(
        "point-mass-as-softmax",
        "a deterministic draft is verified as if it had been sampled from its softmax",
        INPUTS,
        _softmaxed_point_mass,
        "accept",
        "EAGLE #110",
    ),
    Fault(
        "uncapped-ratio",
        "under rule block, the ratio of a path is not kept at 1 at most",
        "fairdraft.ops.rules.path_ratio",
        _uncapped,
        "accept",
    ),
    Fault(
        "replaced-from-p",
        "a rejected draft is replaced from p in place of the residual",
        "fairdraft.ops.rules.residual",
        _from_p,
        "residual",
    ),
    Fault(
        "replaced-from-q",
        "a rejected draft is replaced from q in place of the residual",
        "fairdraft.ops.rules.residual",
        _from_q,
        "residual",
    ),
    Fault(
        "softmaxed-residual",
        "the residual is put through a softmax in place of being normalized",
        "fairdraft.ops.rules.residual",
        _softmaxed,
        "residual",
        "transformers #28508",
    ),
    Fault(
        "clamped-residual",
        "the residual is clamped to at least .01, which gives mass to tokens that p excludes",
        "fairdraft.ops.rules.residual",
        _clamped,
        "residual",
        "vllm #2336, #13933",
    ),
    Fault(
        "masked-as-absent",
        "a draft that the target's mask excludes is dropped in place of being rejected",
        INPUTS,
        _cut_at_masked,
        "residual",
        "vllm #54437",
    ),
    Fault(
        "forbidden-as-absent",
        "a draft that is marked as forbidden ends the proposal, so its row is sampled from p",
        INPUTS,
        _cut_at_forbidden,
        "residual",
        "vllm #54437",
    ),
)
