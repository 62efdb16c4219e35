"""The context check: do the logits that decided tokens belong to the text that came out?

A sampler may be right and the cache beneath it wrong: own logits then score every token well. So
some texts are forwarded once more, whole, and the logits are compared. Deterministic; what rounding
may do is far from what a wrong context does.

Axes: N tokens of a text, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ContextCheck", "Rescorable", "compare_contexts"]

#: largest difference of logits that rounding explains, by dtype
LIMITS = {"float64": 1e-6, "float32": 1e-2, "bfloat16": 1.0, "float16": 0.25}


@dataclass(frozen=True)
class ContextCheck:
    """How far a run's logits are from those of a forward over the whole text.

    Attributes:
        num_tokens: Tokens compared.
        largest: Largest difference of two logits of a token.
        limit: What rounding explains.
        where: Which token it was.
    """

    num_tokens: int
    largest: float
    limit: float
    where: str

    @property
    def is_clean(self) -> bool:
        """Whether rounding explains every difference."""
        return self.largest <= self.limit


@runtime_checkable
class Rescorable(Protocol):
    """A subject in this process whose texts can be forwarded once more."""

    def check_contexts(self) -> ContextCheck:
        """Generates some texts and compares their logits with a forward over each."""
        ...


def compare_contexts(own: Tensor, again: Tensor, dtype: Any, name: str) -> ContextCheck:
    """Compares logits [N, V] of one text.

    Args:
        own: Those that decided its tokens; -inf is skipped.
        again: Those of one forward.
        dtype: That the network computes in.
        name: Of the text.
    """
    difference = (own.double() - again.double()).abs().nan_to_num(0.0, posinf=0.0)
    by_token = difference.amax(dim=1)
    at = int(by_token.argmax())
    limit = LIMITS.get(str(dtype).removeprefix("torch."), 1.0)
    return ContextCheck(len(own), float(by_token[at]), limit, f"position {at} of {name}")
