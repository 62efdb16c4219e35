"""How many drafts stand by the shape of the proposal: chains under two rules, and trees.

Runs the pocket pair through the engine on the same prompts and keys, with temperature 1 unless
asked. `--siblings` compares rules for the candidates of one token on contexts of the same texts:
chances to keep any of k, exact given the draws. The last line of stdout is JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from typing import Any

import numpy as np
from conditions import conditions

from fairdraft import LLM, SamplingParams, pocket
from fairdraft.engine.choice.prompts import PROMPTS
from fairdraft.ops import rules

CHAINS = ("standard", "block")
#: the most likely nodes if a first candidate stands with chance .7, a second one with .14
TUNED = {
    8: [*((0,) * depth for depth in range(1, 7)), (1,), (0, 1)],
    15: [
        *((0,) * depth for depth in range(1, 9)),
        *((1,), (0, 1), (1, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 0, 0, 1)),
    ],
}
#: by number of drafts
TREES: dict[int, dict[str, Any]] = {
    3: {},
    4: {"[2, 1]": [2, 1]},
    8: {"[2, 1, 1, 1]": [2, 1, 1, 1], "tuned": TUNED[8]},
    15: {"[3, 2, 1]": [3, 2, 1], "[2, 2, 1, 1, 1]": [2, 2, 1, 1, 1], "tuned": TUNED[15]},
}


def run(config: dict[str, Any], num_tokens: int, temperature: float) -> dict[str, float]:
    """Tokens a round with 95% error, how deep proposals are, and seconds, over the prompts."""
    llm = LLM(
        str(pocket.path("target")),
        speculative_config={"model": str(pocket.path("draft")), **config},
    )
    asked = [
        SamplingParams(seed=i, max_tokens=num_tokens, temperature=temperature, ignore_eos=True)
        for i in range(len(PROMPTS))
    ]
    begin = time.perf_counter()
    outputs = llm.generate(list(PROMPTS), asked)
    seconds = time.perf_counter() - begin
    metrics = [o.metrics for o in outputs if o.metrics is not None]
    rounds = np.array([m.rounds for m in metrics])
    accepted = np.array([m.num_accepted_tokens for m in metrics])
    mean = accepted.sum() / rounds.sum()
    # texts are independent, rounds of one are not
    error = 1.96 * math.sqrt(((accepted - mean * rounds) ** 2).sum()) / rounds.sum()
    assert llm.config is not None
    return {
        "depth": llm.config.num_speculative_tokens,
        "tokens_a_round": round(1 + float(mean), 3),
        "error": round(float(error), 3),
        "rounds": int(rounds.sum()),
        "seconds": round(seconds, 2),
    }


def laws(num_tokens: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """p and q at the first draft of each round of plain K = 1 speculation."""
    config = {"model": str(pocket.path("draft")), "num_speculative_tokens": 1}
    llm = LLM(str(pocket.path("target")), speculative_config=config)
    found: list[tuple[np.ndarray, np.ndarray]] = []

    def see(seen: Any) -> None:
        for b in np.flatnonzero(seen.num_draft_tokens):
            rows = (seen.target_logits[b, 0], seen.draft_logits[b, 0])
            found.append(tuple(row.double().softmax(-1).numpy() for row in rows))

    llm.engine.observer = see
    asked = [SamplingParams(seed=i, max_tokens=num_tokens) for i in range(len(PROMPTS))]
    llm.generate(list(PROMPTS), asked)
    return found


def recursive(p: np.ndarray, q: np.ndarray, ids: np.ndarray, is_replaced: bool) -> float:
    """Chance that recursive rejection keeps one of the candidates."""
    left, chance, q = p, 0.0, q.copy()
    for x in ids:
        accept = rules.accept_probability(float(left[x]), float(q[x]))
        chance += (1 - chance) * accept
        left = rules.residual(left, q)
        if left.sum() == 0:
            break
        left = left / left.sum()
        if not is_replaced:
            q[x] = 0.0
            q /= q.sum()
    return chance


def k_seq(p: np.ndarray, q: np.ndarray, size: int) -> float:
    """Chance that K-SEQ (Sun et al. 2023) keeps one of `size` independent candidates."""
    low, high = 1.0, float(size)
    for _ in range(30):
        gamma = (low + high) / 2
        kept = np.minimum(p / gamma, q)
        mass = kept.sum()
        is_enough = (p - kept * (1 - (1 - mass) ** size) / mass).min() >= -1e-15
        low, high = (low, gamma) if is_enough else (gamma, high)
    return 1 - (1 - np.minimum(p / high, q).sum()) ** size


def siblings(num_tokens: int, draws: int) -> list[dict[str, float]]:
    """Mean chances over contexts, for 2 to 4 candidates."""
    generator = np.random.default_rng(0)
    contexts = laws(num_tokens)
    rows = []
    for size in (1, 2, 3, 4):
        chances = {"without replacement": [], "with replacement": [], "K-SEQ": []}
        for p, q in contexts:
            chances["K-SEQ"].append(k_seq(p, q, size))
            for _ in range(draws):
                race = generator.exponential(size=len(q)) / np.maximum(q, 1e-300)
                apart = np.argpartition(race, size)[:size]
                apart = apart[race[apart].argsort()]
                again = generator.choice(len(q), size, p=q / q.sum())
                chances["without replacement"].append(recursive(p, q, apart, False))
                chances["with replacement"].append(recursive(p, q, again, True))
        means = {name: round(float(np.mean(found)), 4) for name, found in chances.items()}
        rows.append({"candidates": size, "contexts": len(contexts), **means})
        print(rows[-1])
    return rows


def main() -> None:
    """Prints a row a shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few tokens")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--siblings", action="store_true", help="rules for one token's candidates")
    options = parser.parse_args()
    num_tokens = 8 if options.quick else 160
    document: dict[str, Any] = {"conditions": conditions()}
    if options.siblings:
        document["siblings"] = siblings(num_tokens // 8, 2 if options.quick else 20)
        print(json.dumps(document))
        return
    rows = []
    for size, trees in TREES.items():
        shapes: dict[str, dict[str, Any]] = {
            rule: {"num_speculative_tokens": size, "rejection_sample_method": rule}
            for rule in CHAINS
        }
        shapes |= {name: {"speculative_token_tree": tree} for name, tree in trees.items()}
        for name, config in shapes.items():
            found = run(config, num_tokens, options.temperature)
            rows.append({"drafts": size, "shape": name, **found})
            print(rows[-1])
    print(json.dumps(document | {"rows": rows}))


if __name__ == "__main__":
    main()
