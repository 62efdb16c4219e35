"""The JSON document of a run: one object, the same facts as the table and all the texts."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import fairdraft
from fairdraft.cli.compare import Comparison

if TYPE_CHECKING:
    from fairdraft.cli.session import Job, Run
    from fairdraft.engine import RequestOutput

SCHEMA = "fairdraft.generate/1"
LIBRARIES = ("torch", "transformers", "numpy", "numba", "triton")


def document(
    job: Job,
    run: Run,
    comparison: Comparison | None,
    description: str = "",
    choice: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns what a run did as plain values.

    Args:
        job: What was asked for.
        run: What came out.
        comparison: With plain decoding, or None.
        description: What ran, in the engine's words.
        choice: What method "auto" chose, and from what; None if nothing was to choose.
    """
    summary = run.summary
    return {
        "schema": SCHEMA,
        "versions": library_versions(),
        "model": job.model,
        "speculative_config": job.speculative_config,
        "engine": job.engine,
        "chat": job.chat,
        "sampling_params": job.sampling,
        "description": description.splitlines(),
        "choice": choice,
        "interrupted": run.interrupted,
        "requests": [_request(output) for output in run.outputs],
        "summary": {
            **asdict(summary),
            "tokens_per_second": summary.tokens_per_second,
            "acceptance_length": summary.acceptance_length,
            "acceptance_per_position": summary.acceptance_per_position,
            "target_passes_saved": summary.target_passes_saved,
            "other_seconds": summary.other_seconds,
        },
        "comparison": None
        if comparison is None
        else {
            **asdict(comparison),
            "speculative_median": comparison.speculative_median,
            "plain_median": comparison.plain_median,
            "ratio_median": comparison.ratio_median,
        },
    }


def dumps(value: dict[str, Any], *, indent: int | None = 2) -> str:
    """Returns strict JSON in ASCII, on one line without `indent`; numbers it lacks become null."""
    return json.dumps(_strict(value), indent=indent, allow_nan=False)


def library_versions() -> dict[str, str | None]:
    """Returns the versions of what computes, None where it is not installed; imports none of it."""
    return {"fairdraft": fairdraft.__version__, **{name: _version(name) for name in LIBRARIES}}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _request(output: RequestOutput) -> dict[str, Any]:
    metrics = output.metrics
    return {
        "request_id": output.request_id,
        "prompt": output.prompt,
        "prompt_token_ids": output.prompt_token_ids,
        "noise_key": output.noise_key,
        "error": output.error,
        "lossy": output.lossy,
        "outputs": [
            {
                "index": sample.index,
                "text": sample.text,
                "token_ids": sample.token_ids,
                "token_sources": sample.token_sources,
                "finish_reason": sample.finish_reason,
                "stop_reason": sample.stop_reason,
            }
            for sample in output.outputs
        ],
        "metrics": None
        if metrics is None
        else {**asdict(metrics), "acceptance_length": metrics.acceptance_length},
    }


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
