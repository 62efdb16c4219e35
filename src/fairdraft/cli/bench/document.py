"""The JSON document of a measurement: what the table and the picture are drawn from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairdraft.cli.document import library_versions
from fairdraft.engine.measuring.conditions import conditions

if TYPE_CHECKING:
    from fairdraft.engine.measuring import Measurement


def document(
    found: Measurement, before: dict[str, Any], threads: int, schema: str
) -> dict[str, Any]:
    """Returns a measurement and its conditions as plain values.

    Args:
        found: The measurement.
        before: Conditions when it began.
        threads: Of torch.
        schema: Name and version of the layout.
    """
    return {
        "schema": schema,
        "versions": library_versions(),
        "conditions": before,
        "load_average_after": conditions()["load_average"],
        "device_name": _device_name(found.target["device"]),
        "threads": threads,
        **found.as_dict(),
    }


def _device_name(device: str) -> str:
    import torch

    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device
