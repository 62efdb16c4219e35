"""Rule `common_noise` against plain decoding: is the text of a key the same, token for token?

Prompts of the pocket models under varying temperatures and filters, decoded plainly and under four
speculators. A first difference is a tie if the draw's margin is below four times the largest
difference of the two runs' logits; ties may be 1 in 10,000 tokens. Exits 1 otherwise. The last line
of stdout is JSON.

    python bench/same_text.py [--prompts 500] [--tokens 32] [--device cpu]
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fairdraft import LLM, SamplingParams, noise, ops, pocket
from fairdraft.engine import Observation
from fairdraft.models import load_model
from fairdraft.noise import Stream

TIE_FACTOR, MOST_TIES = 4.0, 1e-4
CHUNK = 50
FILTERS: list[dict[str, Any]] = [{}, {"top_k": 20}, {"top_p": 0.9}, {"min_p": 0.02}]
TEMPERATURES = (0.5, 0.8, 1.0, 1.3)

Name = tuple[int, int, int]


@dataclass
class Decisions:
    """Observes an engine: token, law and temperature by key, sample and position."""

    found: dict[Name, tuple[int, np.ndarray, float]] = field(default_factory=dict)

    def __call__(self, seen: Observation) -> None:
        for b, emitted in enumerate(seen.num_emitted_tokens.tolist()):
            for i in range(emitted):
                name = (int(seen.key[b]), int(seen.sample[b]), int(seen.anchor[b]) + i)
                row = seen.target_logits[b, i].float().numpy().copy()
                token = int(seen.token_ids[b, i])
                self.found[name] = (token, row, float(seen.temperature[b]))


@dataclass
class Tally:
    """What came of the comparisons of one speculator with plain decoding."""

    tokens: int = 0
    drafts: int = 0
    accepted: int = 0
    largest_logit_difference: float = 0.0
    margins: list[float] = field(default_factory=list)

    def add(self, plain: Decisions, other: Decisions) -> None:
        """Compares text by text, each up to its first difference."""
        ended: set[tuple[int, int]] = set()
        for name in sorted(plain.found):
            if name[:2] in ended or name not in other.found:
                continue
            (a, p, temperature), (b, q, _) = plain.found[name], other.found[name]
            both = np.isfinite(p) & np.isfinite(q)
            difference = float(np.abs(p[both] - q[both]).max())
            self.largest_logit_difference = max(self.largest_logit_difference, difference)
            self.tokens += 1
            if a != b:
                ended.add(name[:2])
                self.margins.append(min(_margin(name, row, temperature) for row in (p, q)))

    def summary(self) -> dict[str, Any]:
        """Figures of a JSON document."""
        limit = TIE_FACTOR * self.largest_logit_difference
        ties = sum(margin < limit for margin in self.margins)
        return {
            "tokens": self.tokens,
            "differences": len(self.margins),
            "ties": ties,
            "largest_logit_difference": self.largest_logit_difference,
            "acceptance_rate": self.accepted / max(self.drafts, 1),
            "passed": ties == len(self.margins) and ties <= MOST_TIES * self.tokens,
        }


def _margin(name: Name, row: np.ndarray, temperature: float) -> float:
    key, sample, position = name
    at = noise.address(Stream.TARGET, key=key, position=position, sample=sample)
    drawn = ops.sample(torch.from_numpy(row)[None], at, temperature=temperature)
    return float(drawn.margin[0])


def speculators(draft: Any) -> dict[str, dict[str, Any]]:
    """Four settings of `speculative_config`."""
    model = {"method": "draft_model", "model": draft}
    return {
        "draft model, K = 2": model | {"num_speculative_tokens": 2},
        "draft model, K = 6": model | {"num_speculative_tokens": 6},
        "greedy drafts, K = 4": model | {"draft_sample_method": "greedy"},
        "ngram, K = 4": {"method": "ngram", "prompt_lookup_min": 1},
    }


def requests(vocab_size: int, count: int, num_tokens: int) -> tuple[list[Any], list[Any]]:
    """Prompts of random ids, and parameters in turns."""
    rng = np.random.default_rng(17)
    prompts = [rng.integers(0, vocab_size, rng.integers(1, 24)).tolist() for _ in range(count)]
    params = [
        SamplingParams(
            seed=seed,
            temperature=TEMPERATURES[seed // len(FILTERS) % len(TEMPERATURES)],
            max_tokens=num_tokens,
            ignore_eos=True,
            **FILTERS[seed % len(FILTERS)],
        )
        for seed in range(count)
    ]
    return prompts, params


def decode(llm: LLM, prompts: list[Any], params: list[Any]) -> tuple[Decisions, list[Any]]:
    """Every decision of a batch, and its outputs."""
    decisions = Decisions()
    llm.engine.observer = decisions
    return decisions, llm.generate(prompts, params)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--prompts", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    target, draft = (
        load_model(pocket.path(name), device=given.device) for name in ("target", "draft")
    )
    common = {"rejection_sample_method": "common_noise"}
    engines = {
        name: LLM(target, device=given.device, speculative_config=config | common)
        for name, config in speculators(draft).items()
    }
    tallies = {name: Tally() for name in engines}
    plain = LLM(target, device=given.device)
    prompts, params = requests(target.vocab_size, given.prompts, given.tokens)
    for begin in range(0, given.prompts, CHUNK):
        chunk = prompts[begin : begin + CHUNK], params[begin : begin + CHUNK]
        expected, _ = decode(plain, *chunk)
        for name, llm in engines.items():
            found, outputs = decode(llm, *chunk)
            tallies[name].add(expected, found)
            tallies[name].drafts += sum(o.metrics.num_draft_tokens for o in outputs)
            tallies[name].accepted += sum(o.metrics.num_accepted_tokens for o in outputs)
        print(f"{begin + len(chunk[0])} of {given.prompts} prompts", file=sys.stderr)
    settings = {name: tally.summary() for name, tally in tallies.items()}
    passed = all(summary["passed"] for summary in settings.values())
    document = {"prompts": given.prompts, "tokens_each": given.tokens, "device": given.device}
    print(json.dumps(document | {"settings": settings, "passed": passed}))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
