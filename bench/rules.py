"""How many drafts stand by rule, on the same rounds of the pocket pair, beside what theory says.

Texts of the target are cut at random places, and one round of K = 4 sampled drafts is verified from
each, under each rule, with the same keys: `token` and `block` judge the very same drafts. Theory is
evaluated on the rows of those rounds:

- `token`: draft i + 1 stands with chance sum min(p, q) where i stand;
- `block`: i drafts stand with chance rho_i along the path;
- `common_noise`: the chance that two races agree (`rules.race_match_probability`); with flat noise
  it is at least (1 - TV) / (1 + TV);
- no rule keeps i drafts more often than the mean of min(1, product of p / q).

Intervals are 95 %, with texts as the independent unit. The last line of stdout is JSON.

    python bench/rules.py                # measures
    python bench/rules.py --record       # and writes results/rules.json, the picture and the page
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from blocks import fill, markdown_table, rewrite
from conditions import ROOT, conditions, describe

from fairdraft import LLM, SamplingParams, noise, pocket
from fairdraft.audit.subjects.engine_exact import forward_whole
from fairdraft.engine import Observation
from fairdraft.engine.choice.prompts import PROMPTS
from fairdraft.models import CausalLM, load_model
from fairdraft.ops import rules
from fairdraft.ops.arithmetic import TILE

K = 4
TEMPERATURES = (0.7, 1.0)
METHODS = {"token": "standard", "block": "block", "common_noise": "common_noise"}
PAGE, RECORDED = ROOT / "docs" / "rules.md", ROOT / "bench" / "results" / "rules.json"
PICTURE = ROOT / "docs" / "img" / "rules-acceptance.png"
#: two-sided 95 %
QUANTILE = 1.96


@dataclass
class FirstRounds:
    """Observes an engine: what came of the first round of each request.

    Attributes:
        rule: Of the engine.
        draft: The draft model, for laws that a guess comes without.
        prompts: Ids by request key.
        found: Drafts that stood, and theory's share and bound of each [K], by request key.
    """

    rule: str
    draft: CausalLM
    prompts: dict[int, list[int]]
    found: dict[int, tuple[int, np.ndarray, np.ndarray]] = field(default_factory=dict)

    def __call__(self, seen: Observation) -> None:
        for b, key in enumerate(seen.key.tolist()):
            if seen.anchor[b] == len(self.prompts[key]):
                assert seen.num_draft_tokens[b] == K
                self.found[key] = self._judged(seen, b, self.prompts[key])

    def _judged(self, seen: Observation, b: int, prompt: list[int]) -> Any:
        accepted, drafts = int(seen.num_accepted_tokens[b]), seen.draft_token_ids[b].tolist()
        temperature = float(seen.temperature[b])
        laws = seen.draft_logits
        if isinstance(laws, torch.Tensor):
            draft_rows = laws[b]
        else:
            draft_rows = forward_whole(self.draft, [*prompt, *drafts])[len(prompt) - 1 : -1]
        p, q = (
            (rows.double() / temperature).softmax(-1).numpy()
            for rows in (seen.target_logits[b, :K], draft_rows)
        )
        ratios = np.array([p[i, x] / q[i, x] for i, x in enumerate(drafts)])
        best = np.minimum(np.cumprod(ratios), 1.0)
        if self.rule == "block":
            rho, path = 1.0, []
            for i, x in enumerate(drafts):
                rho = rules.path_ratio(rho, float(p[i, x]), float(q[i, x]))
                path.append(rho)
            return accepted, np.array(path), best
        # a row that the walk did not come to counts as 0, as its draft does
        share, bound = np.zeros(K), best
        if self.rule == "common_noise":
            bound = np.zeros(K)
        for i in range(min(accepted + 1, K)):
            overlap = float(np.minimum(p[i], q[i]).sum())
            if self.rule == "token":
                share[i] = overlap
            else:
                share[i] = rules.race_match_probability(p[i], q[i], TILE)
                bound[i] = overlap / (2 - overlap)
        return accepted, share, bound


def contexts(target: CausalLM, temperature: float, num_texts: int, cuts: int) -> list[list[int]]:
    """Beginnings of texts of the target, `cuts` of each text in a row."""
    samples = -(-num_texts // len(PROMPTS))
    params = SamplingParams(n=samples, temperature=temperature, max_tokens=80, seed=23)
    generator = np.random.default_rng(23)
    found: list[list[int]] = []
    for output in LLM(target).generate(list(PROMPTS), params):
        for sample in output.outputs:
            whole = [*output.prompt_token_ids, *sample.token_ids]
            first = len(output.prompt_token_ids)
            places = generator.choice(np.arange(first, len(whole)), cuts, replace=False)
            found += [whole[:place] for place in places.tolist()]
    return found[: num_texts * cuts]


def measure(num_texts: int, cuts: int) -> dict[str, Any]:
    """Every rule at every temperature, on one thread."""
    target, draft = (load_model(pocket.path(name)) for name in ("target", "draft"))
    engines = {}
    for rule, method in METHODS.items():
        config = {"model": draft, "num_speculative_tokens": K, "rejection_sample_method": method}
        engines[rule] = LLM(target, speculative_config=config)
    results = []
    for temperature in TEMPERATURES:
        texts = contexts(target, temperature, num_texts, cuts)
        keys = [noise.request_key(seed, ids) for seed, ids in enumerate(texts)]
        params = [
            SamplingParams(seed=seed, temperature=temperature, max_tokens=K + 1, ignore_eos=True)
            for seed in range(len(texts))
        ]
        for rule, llm in engines.items():
            rounds = FirstRounds(rule, draft, dict(zip(keys, texts, strict=True)))
            llm.engine.observer = rounds
            llm.generate([{"prompt_token_ids": ids} for ids in texts], params)
            found = [rounds.found[key] for key in keys]
            results.append({"rule": rule, "temperature": temperature} | _summary(found, cuts))
    return {"num_drafts": K, "texts": num_texts, "rounds": num_texts * cuts, "results": results}


def _summary(found: list[tuple[int, np.ndarray, np.ndarray]], cuts: int) -> dict[str, Any]:
    accepted = np.array([count for count, _, _ in found])
    stood = (accepted[:, None] > np.arange(K)).astype(float)
    share, bound = (np.array([each[i] for each in found]) for i in (1, 2))
    gap, error = _mean(stood - share, cuts)
    return {
        "accepted": [float(part[0]) for part in _mean(accepted[:, None].astype(float), cuts)],
        "at_least": [part.round(5).tolist() for part in _mean(stood, cuts)],
        "theory": [part.round(5).tolist() for part in _mean(share, cuts)],
        "bound": _mean(bound, cuts)[0].round(5).tolist(),
        # how many standard errors the drafts that stood are from theory on the same rows
        "deviations": np.divide(gap, error, out=np.zeros(K), where=error > 0).round(2).tolist(),
    }


def _mean(values: np.ndarray, cuts: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard error of columns [N, C]; the cuts of a text are not independent."""
    texts = values.reshape(-1, cuts, values.shape[1]).mean(1)
    return texts.mean(0), texts.std(0, ddof=1) / np.sqrt(len(texts))


def filled(page: str, recorded: dict[str, Any]) -> str:
    """The page with its table and conditions written anew."""
    columns = ["rule", "T", "drafts that stand, of 4", *(f"first {i}" for i in range(1, K + 1))]
    lines = []
    for result in recorded["results"]:
        mean, error = result["accepted"]
        cells = [
            f"{stood:.3f} ± {QUANTILE * spread:.3f} ({due:.3f}; {most:.3f})"
            for stood, spread, due, most in zip(
                *result["at_least"], result["theory"][0], result["bound"], strict=True
            )
        ]
        lines.append(
            [
                f"`{result['rule']}`",
                f"{result['temperature']:g}",
                f"{mean:.2f} ± {QUANTILE * error:.2f}",
                *cells,
            ]
        )
    state = f"{recorded['rounds']:,} rounds of {recorded['texts']} texts for each line; "
    blocks = {
        "acceptance": markdown_table(columns, lines, are_numbers=False),
        "conditions": f"{state}{describe(recorded['conditions'])}.\n",
    }
    return fill(page, blocks, PAGE.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--texts", type=int, default=120)
    parser.add_argument("--cuts", type=int, default=6, help="rounds a text")
    parser.add_argument("--record", action="store_true", help="write results, picture and page")
    given = parser.parse_args()
    torch.set_num_threads(1)
    document: dict[str, Any] = measure(given.texts, given.cuts)
    document["conditions"] = conditions()
    if given.record:
        RECORDED.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        rewrite(PAGE, lambda page: filled(page, document))
        from picture import draw_rules

        draw_rules(document["results"], describe(document["conditions"]), PICTURE)
    print(json.dumps(document))


if __name__ == "__main__":
    main()
