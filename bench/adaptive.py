"""Adaptive K against every fixed K on the embedded pair, by counts: no clock, so no noise of it.

    python bench/adaptive.py [--quick]

Tokens over rounds + c drafts, in units of a round without drafts: what decoding gains if a draft
costs c of such a round. The last line of stdout is JSON.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from conditions import conditions

from fairdraft import LLM, SamplingParams
from fairdraft.audit.prompts import PROMPTS
from fairdraft.models import CausalLM, load_model

COSTS, FIXED, MOST = (0.15, 0.25, 0.4), (2, 3, 4, 6), 8


def main() -> None:
    """Counts and reports."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few prompts, few tokens")
    quick = parser.parse_args().quick
    prompts, tokens = (PROMPTS[:2], 12) if quick else (PROMPTS[:36], 96)
    target, draft = load_model("pocket"), load_model("pocket-draft", role="draft")
    results = []
    for temperature in (0.0, 1.0):
        params = [
            SamplingParams(temperature=temperature, seed=seed, max_tokens=tokens, ignore_eos=True)
            for seed in range(len(prompts))
        ]
        fixed = {
            count: _counts(target, {"num_speculative_tokens": count}, draft, prompts, params)
            for count in FIXED
        }
        for cost in COSTS:
            config = {"adaptive": True, "adaptive_cost_ratio": cost, "num_speculative_tokens": MOST}
            found = _counts(target, config, draft, prompts, params)
            result = {
                "temperature": temperature,
                "cost_ratio": cost,
                "fixed": {count: _gain(counts, cost) for count, counts in fixed.items()},
                "adaptive": _gain(found, cost),
                "mean_drafts": round(found[2] / found[1], 2),
            }
            results.append(result)
            print(result, flush=True)
    shape = {"prompts": len(prompts), "new_tokens": tokens}
    print(json.dumps({"conditions": conditions(), **shape, "results": results}))


def _counts(
    target: CausalLM, config: dict[str, Any], draft: CausalLM, prompts: Any, params: Any
) -> tuple[int, int, int]:
    """Tokens, rounds and drafts of all requests."""
    llm = LLM(target, speculative_config={"model": draft, **config})
    metrics = [o.metrics for o in llm.generate(list(prompts), params) if o.metrics is not None]
    return (
        sum(m.num_emitted_tokens for m in metrics),
        sum(m.rounds for m in metrics),
        sum(m.num_draft_tokens for m in metrics),
    )


def _gain(counts: tuple[int, int, int], cost: float) -> float:
    tokens, rounds, drafts = counts
    return round(tokens / (rounds + cost * drafts), 3)


if __name__ == "__main__":
    main()
