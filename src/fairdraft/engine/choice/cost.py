"""What a draft costs, for a speculator whose K follows from its requests' own rounds."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from fairdraft.engine.choice.rounds import Trial, loaded, new_trial, opening_ids
from fairdraft.engine.config import SpeculativeConfig
from fairdraft.engine.core import Engine
from fairdraft.models import CausalLM

_TURNS, _SECONDS, _LEAST = 2, 0.5, 0.01


def measure_cost_ratio(
    config: SpeculativeConfig,
    target: CausalLM,
    dtype: str | None,
    max_model_len: int,
    **engine: Any,
) -> float:
    """Times rounds with K drafts and without: what a draft adds, over a round without.

    Args:
        config: The speculator, at its K.
        target: The loaded target.
        dtype: Of a draft model, as `load_model`.
        max_model_len: Context of the requests.
        **engine: `impl` and `enforce_eager` of the engine to come.

    Returns:
        c of `adaptive.DraftSchedule`, to two digits, at least .01.

    Raises:
        ValueError: If no draft came up, so that there is nothing to time.
    """
    engine |= {"max_num_seqs": 1, "max_model_len": max_model_len}
    plain = Trial(Engine(target, None, **engine), 0)
    num_drafts = config.num_speculative_tokens
    drafting = new_trial(loaded(config, target, dtype), num_drafts, target, dtype, engine)
    prompts = opening_ids(target, max_model_len)
    for trial in (plain, drafting):
        trial.warm_up(prompts[0], 1.0)
    for turn in range(_TURNS):
        for trial in (plain, drafting):
            trial.run(prompts[turn], 1.0, _SECONDS / (2 * _TURNS))
    for trial in (plain, drafting):
        trial.check_timed()
    drafts = fmean(drafting.log.num_drafts)
    if not drafts:
        raise ValueError(
            f"adaptive: {config.method!r} drafted nothing on the built-in prompts, so what a draft "
            "costs is unknown; give adaptive_cost_ratio, such as 0.05 for drafts from text"
        )
    without, with_drafts = (
        trial.log.seconds("draft") + trial.log.seconds("rest") for trial in (plain, drafting)
    )
    return max(float(f"{(with_drafts - without) / (drafts * without):.2g}"), _LEAST)
