"""Linear layers in oneDNN's own weight layout, for short blocks of tokens on a CPU.

A verification round multiplies every weight matrix by a handful of rows, where the plain kernel
reads the weights at less than half the speed of memory; the packed one does not.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["Product", "can_pack", "pack_linear_layers"]

# a call of the packed kernel costs about 12 us more, which a smaller layer does not win back
_MIN_WEIGHTS = 1 << 17
_MAX_WEIGHTS = 1_000_000_000
_TOLERANCE = 1e-3


class Product:
    """Multiplies by one weight matrix, packed when that wins.

    Args:
        weight: float32 [N, K] on a CPU.
        bias: float32 [N], or None.

    Attributes:
        weight: As given.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self._bias = weight, bias
        self._packed: Tensor | None = None
        if weight.numel() >= _MIN_WEIGHTS:
            self._multiply = torch.ops.mkldnn._linear_pointwise.default
            self._packed = torch.ops.mkldnn._reorder_linear_weight.default(weight, None)

    @property
    def is_packed(self) -> bool:
        """Whether a packed copy exists."""
        return self._packed is not None

    def __call__(self, values: Tensor) -> Tensor:
        """Returns [..., N] for values [..., K]."""
        if self._packed is None:
            return functional.linear(values, self.weight, self._bias)
        return self._multiply(values, self._packed, self._bias, "none", [], "")


class _PackedForward:
    """Stands in for the forward of one linear layer."""

    def __init__(self, layer: nn.Linear) -> None:
        # straight from the table, past the slow lookup of module attributes
        self._parameters = layer._parameters
        self._pack()

    def _pack(self) -> None:
        weight, bias = self._parameters["weight"], self._parameters["bias"]
        assert weight is not None
        self._weight, self._bias = weight, bias
        self._version = weight._version
        self._product = Product(weight.detach(), None if bias is None else bias.detach())

    def __call__(self, values: Tensor) -> Tensor:
        weight, bias = self._parameters["weight"], self._parameters["bias"]
        assert weight is not None
        # a weight that was replaced or written to after loading must not be ignored
        if weight is not self._weight or weight._version != self._version or bias is not self._bias:
            self._pack()
        return self._product(values)


def can_pack(model: nn.Module) -> bool:
    """Tells whether the layout exists here and suits the model.

    Args:
        model: A network on its device.

    Returns:
        True for at most 10^9 weights in float32 on a CPU whose torch has oneDNN.
    """
    if not torch.backends.mkldnn.is_available():
        return False
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    weights = list(model.parameters())
    if any(weight.dtype != torch.float32 or weight.device.type != "cpu" for weight in weights):
        return False
    return sum(weight.numel() for weight in weights) <= _MAX_WEIGHTS


def pack_linear_layers(model: nn.Module) -> int:
    """Replaces the forward of the large linear layers of a network for inference.

    The weights stay where they are, the packed copies come on top, and a layer whose packed
    product disagrees with the plain one keeps its own forward.

    Args:
        model: Changed in place; `can_pack` must hold.

    Returns:
        Number of layers replaced.
    """
    count = 0
    for module in model.modules():
        # a subclass may do more than a product
        if type(module) is not nn.Linear or module.weight.numel() < _MIN_WEIGHTS:
            continue
        packed = _packed(module)
        if packed is not None:
            setattr(module, "forward", packed)  # noqa: B010
            count += 1
    return count


@torch.inference_mode()
def _packed(layer: nn.Linear) -> _PackedForward | None:
    values = torch.linspace(-1.0, 1.0, 2 * layer.in_features).reshape(2, layer.in_features)
    expected = layer(values)
    try:
        packed = _PackedForward(layer)
        found = packed(values)
    except RuntimeError:
        return None
    if not torch.allclose(found, expected, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True):
        return None
    return packed
