"""Faults of the public catalogue, planted until a test ends, and one that only a test can reach."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from fairdraft.audit import faults as catalogue
from fairdraft.audit.faults import FAULTS, Planting
from fairdraft.audit.faults.noise_faults import clamped as clamped_positions


@dataclass(frozen=True)
class Fault:
    """One of the catalogue's faults, for tests."""

    fault: catalogue.Fault

    def plant(self, monkeypatch: pytest.MonkeyPatch) -> Planting:
        """Plants the fault until the test ends; the result says how often it ran."""
        planting = Planting()
        monkeypatch.setattr(*self.fault.replacement(planting))
        return planting


def clamped(limit: int) -> Fault:
    """Drafts are keyed by position alone, and positions stop at `limit`."""
    return Fault(clamped_positions(limit))


#: draft, replacement and bonus share the noise of their position (the bug of the public engines)
SHARED_NOISE = Fault(FAULTS["shared-noise"])
#: the test of a draft uses the address that drew it
ACCEPT_AS_DRAFT = Fault(FAULTS["accept-reads-draft"])
#: the draft of position P uses the address that sampled the token of P - 1
OFF_BY_ONE = Fault(FAULTS["off-by-one"])
#: every step of a proposal uses the address of its first
CONSTANT_OVER_STEPS = Fault(FAULTS["constant-position"])
#: the samples of a request draw the same drafts
SHARED_BY_SAMPLES = Fault(FAULTS["shared-proposal"])
#: a position that is drafted again uses the address of its first draft
REDRAWN = Fault(FAULTS["redrafted-position"])
#: all draws are named by stream and position alone
BY_POSITION = Fault(FAULTS["position-names"])
#: a rejected draft is replaced from p
P_FOR_RESIDUAL = Fault(FAULTS["replaced-from-p"])
#: under rule `block`, a path's rho is the plain product of its ratios
UNCAPPED_RATIO = Fault(FAULTS["uncapped-ratio"])
#: a forbidden draft and what follows are left out, so the row is sampled from p
FORBIDDEN_AS_ABSENT = Fault(FAULTS["masked-as-absent"])
#: a deterministic draft is verified as if it had been sampled from its softmax
SOFTMAXED_POINT_MASS = Fault(FAULTS["point-mass-as-softmax"])
#: drafts are drawn at temperature 1, whatever the request asked for
DRAWN_AT_ONE = Fault(FAULTS["drawn-at-one"])
#: drafts are filtered, and the verifier is told the unfiltered law
UNFILTERED_Q = Fault(FAULTS["unfiltered-q"])
#: a draft of q < .25 is dropped with what follows it
STOP_THAT_LOOKED = Fault(FAULTS["dropped-after-looking"])


def _kept_on_empty(original: Callable[..., Any], planting: Planting) -> Callable[..., Any]:
    def replacement(inputs: Any, row: Any, residual: Any, b: int, r: int) -> Any:
        if residual.any():
            return original(inputs, row, residual, b, r)
        return int(inputs.token_ids[b, r]), 0.0

    return replacement


#: a rejected draft stands if the residual is empty; samples would show it once in 2^31 draws
KEPT_ON_EMPTY_RESIDUAL = Fault(
    catalogue.Fault(
        "kept-on-empty-residual",
        "a rejected draft stands if the residual is empty",
        "fairdraft.ops.chain.replacement",
        _kept_on_empty,
        "residual",
    )
)
