"""Draws the drafts of a round on the device, at the addresses of the samplers of `speculators`.

Axes: B rows, K drafts, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fairdraft import ops
from fairdraft.noise import Stream
from fairdraft.ops import DeviceAddress
from fairdraft.ops.triton.workspace import Workspace
from fairdraft.ops.verify import AnyRule


class DeviceRace:
    """One round's drafts, their laws and their errors.

    Args:
        named: `key`, `anchor` and `sample` of the addresses, int64 [B].
        temperature: float64 [B].
        rule: Verification rule.
        is_greedy: Takes the best token at each step.
        workspace: Scratch of the kernels.
    """

    def __init__(
        self,
        named: dict[str, Tensor],
        temperature: Tensor,
        *,
        rule: AnyRule,
        is_greedy: bool,
        workspace: Workspace,
    ) -> None:
        self._named = named
        self._temperature = 0.0 if is_greedy else temperature
        self._is_common = rule == "common_noise"
        self._has_laws = not is_greedy and not self._is_common
        self._workspace = workspace
        self._drawn: list[ops.Sampled] = []
        self._laws: list[Tensor] = []

    def draw(self, law: Tensor, step: int) -> Tensor:
        """Draws draft `step` of every row; see `DrawOnDevice`.

        Noise:
            As `SharedSampler.draw`; under rule `common_noise` as `CommonSampler.draw`.

        Distribution:
            softmax(law / temperature).
        """
        drawn = ops.sample(
            law,
            self._address(step),
            temperature=self._temperature,
            impl="triton",
            workspace=self._workspace,
            validate=False,
        )
        self._drawn.append(drawn)
        if self._has_laws:
            self._laws.append(law)
        return drawn.token_ids.clamp(min=0)

    def _address(self, step: int) -> DeviceAddress:
        named: dict[str, Any] = dict(self._named)
        anchor = named.pop("anchor")
        named["position"] = anchor + (step - 1)
        if self._is_common:
            return DeviceAddress(Stream.TARGET, **named)
        return DeviceAddress(Stream.DRAFT, anchor=anchor, node=step, **named)

    @property
    def token_ids(self) -> Tensor:
        """Drafts [K, B]; PLACEHOLDER_TOKEN_ID where `errors` is set."""
        return torch.stack([drawn.token_ids for drawn in self._drawn])

    @property
    def errors(self) -> Tensor:
        """Codes of `RowError`, int64 [K, B]."""
        return torch.stack([drawn.error for drawn in self._drawn])

    @property
    def laws(self) -> Tensor | None:
        """q [B, K, V]; None for point masses, and where no rule takes it."""
        return torch.stack(self._laws, dim=1) if self._laws else None
