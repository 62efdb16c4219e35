"""Cost of plain decoding on a CPU by shape: milliseconds a token at batch 1, fp32.

python -m train.pocket.timing results.json --vocab 4096
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path

import torch
import transformers

from train.pocket import shapes


@torch.no_grad()
def step_seconds(model: transformers.LlamaForCausalLM, *, prefix: int, steps: int) -> list[float]:
    """Seconds of each of `steps` single-token forwards after a prefix."""
    cache = model(torch.ones(1, prefix, dtype=torch.long), use_cache=True).past_key_values
    token, times = torch.ones(1, 1, dtype=torch.long), []
    for _ in range(steps):
        begin = time.perf_counter()
        logits = model(token, past_key_values=cache, use_cache=True).logits
        times.append(time.perf_counter() - begin)
        token = logits[:, -1].argmax(-1, keepdim=True)
    return times


def measure(names: list[str], vocab_size: int, rounds: int) -> dict[str, dict[str, float]]:
    """Times every shape in turn, `rounds` times over; minimum and median in milliseconds."""
    known = shapes.TARGETS | {f"draft-{k}": v for k, v in shapes.DRAFTS.items()}
    models = {name: shapes.build(known[name], vocab_size, 0).eval() for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name, model in models.items():
            times[name] += step_seconds(model, prefix=64, steps=40)[5:]
    result = {}
    for name, model in models.items():
        ordered = sorted(times[name])
        parameters = sum(p.numel() for p in model.parameters())
        result[name] = {
            "parameters": parameters,
            "bf16_megabytes": round(parameters * 2 / 1e6, 2),
            "min_ms": round(ordered[0] * 1e3, 3),
            "median_ms": round(ordered[len(ordered) // 2] * 1e3, 3),
        }
    return result


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--shapes", nargs="+")
    args = parser.parse_args()
    names = args.shapes or [
        *(n for n in shapes.TARGETS if n not in ("toy", "first")),
        *(f"draft-{n}" for n in shapes.DRAFTS if n not in ("toy", "first")),
    ]
    content: dict[str, object] = {
        "machine": platform.machine(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    for threads in args.threads:
        torch.set_num_threads(threads)
        content[f"threads_{threads}"] = measure(names, args.vocab, args.rounds)
    args.output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
