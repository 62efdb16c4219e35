"""The files of a head's checkpoint: one config.json and its tensors."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
PICKLED = "pytorch_model.bin"


def read_json(folder: Path) -> dict[str, Any]:
    """Reads a folder's configuration.

    Raises:
        ValueError: If it is missing or no JSON object.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise ValueError(f"{str(folder)!r} is no head: it has no {CONFIG}")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{str(path)!r} is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{str(path)!r} holds no object")
    return config


def read_weights(folder: Path, is_wanted: Callable[[str], bool] | None = None) -> dict[str, Tensor]:
    """Reads a folder's tensors, sharded or not.

    Args:
        folder: The checkpoint.
        is_wanted: Says by its name whether a tensor is wanted; None for all.

    Raises:
        ValueError: If a file is missing, truncated or no checkpoint.
    """
    tensors: dict[str, Tensor] = {}
    for file in _weight_files(folder):
        tensors |= _read_tensors(file, is_wanted)
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ValueError(
                f"{str(folder)!r}: tensor {name!r} holds NaN or infinity; the head is broken, "
                "train it again or fetch it again"
            )
    return tensors


def write_checkpoint(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Writes a checkpoint; each file appears whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    scratch = folder / f".{CONFIG}.new"
    scratch.write_text(text, encoding="utf-8")
    kept = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    weights = folder / f".{WEIGHTS}.new"
    save_file(kept, weights, metadata={"format": "pt"})
    weights.chmod(0o644)
    os.replace(weights, folder / WEIGHTS)
    os.replace(scratch, folder / CONFIG)


def _weight_files(folder: Path) -> list[Path]:
    index = folder / f"{WEIGHTS}.index.json"
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if index.is_file():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        for name in names:
            # a name with a path in it could reach outside the folder
            if Path(name).name != name or not (folder / name).is_file():
                raise ValueError(f"{str(index)!r} names {name!r}, which is not beside it")
        return [folder / name for name in names]
    if (folder / PICKLED).is_file():
        return [folder / PICKLED]
    raise ValueError(f"{str(folder)!r} has no weights: neither {WEIGHTS} nor {PICKLED}")


def _read_tensors(file: Path, is_wanted: Callable[[str], bool] | None) -> dict[str, Tensor]:
    try:
        if file.suffix == ".safetensors":
            with safe_open(file, framework="pt") as store:
                names = store.keys()
                wanted = [name for name in names if is_wanted is None or is_wanted(name)]
                return {name: store.get_tensor(name) for name in wanted}
        # plain tensors only: nothing in the file is executed
        found = torch.load(file, map_location="cpu", weights_only=True)
    except SafetensorError as error:
        raise ValueError(f"{str(file)!r} is truncated or damaged: {error}") from error
    except Exception as error:
        first = str(error).strip().splitlines()[:1]
        raise ValueError(f"{str(file)!r} cannot be read: {' '.join(first)}") from error
    if not isinstance(found, dict) or not all(isinstance(v, Tensor) for v in found.values()):
        raise ValueError(f"{str(file)!r} holds no dictionary of tensors")
    return {name: tensor for name, tensor in found.items() if is_wanted is None or is_wanted(name)}
