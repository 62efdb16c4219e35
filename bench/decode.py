"""Decoding of the embedded pair: ours by mode, beside `transformers` generate, same weights.

    python bench/decode.py [--quick] [--threads 1 2] [--device cuda] [--json FILE] [--picture FILE]

Every decoder emits the same number of tokens of the same prompts, end of text ignored; they take
turns, so that a ratio compares neighbors in time. Nothing is timed before all greedy texts agree.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from agreement import check_greedy
from conditions import conditions, describe, thread_counts
from overhead import round_costs
from report import (
    CheckError,
    Target,
    finish,
    refuse,
    show_table,
    show_targets,
    targets_json,
)
from subjects import Decoder, Job, hf_decoder, our_decoder, our_llms, stock_network
from timing import interleave, paired_ratio, spread
from transformers.utils import logging as hf_logging

from fairdraft import LLM
from fairdraft.engine.choice.prompts import PROMPTS
from fairdraft.models import CausalLM, load_model

PLAIN, DRAFT, NGRAM = "plain", "draft model", "n-gram"
HF_PLAIN, HF_ASSISTED, HF_ASSISTED_K = "hf plain", "hf assisted", "hf assisted, our K"
TEMPERATURES = (1.0, 0.0)


def main() -> None:
    """Checks, measures and reports."""
    arguments = _arguments()
    _silence()
    before = conditions()
    print(describe(before))
    device = arguments.device
    target = load_model(arguments.target, device=device)
    draft = load_model(arguments.draft, device=device, role="draft")
    shapes = {role: _shape(lm) for role, lm in (("target", target), ("draft", draft))}
    for role, shape in shapes.items():
        print(f"{role}: {', '.join(f'{name} {value}' for name, value in shape.items())}")
    llms = our_llms(target, draft, arguments.drafts)
    prompts = _prompts(target)[: arguments.prompts]
    stock, assistant = stock_network(target), stock_network(draft)
    try:
        greedy = check_greedy(llms, stock, prompts, arguments.checked_tokens)
    except CheckError as error:
        refuse("decode", error)
    decoders = {name: our_decoder(llm) for name, llm in llms.items()}
    decoders[HF_PLAIN] = hf_decoder(stock)
    decoders[HF_ASSISTED] = hf_decoder(stock, assistant)
    decoders[HF_ASSISTED_K] = hf_decoder(stock, assistant, constant=arguments.drafts)
    results = list(_measure_all(decoders, prompts, arguments))
    # what a round costs and should reach is said of a CPU
    is_cpu = device == "cpu"
    costs = list(_measure_costs(llms, prompts, arguments)) if is_cpu else []
    _show(results, costs)
    targets = list(_targets(results, costs)) if is_cpu else []
    show_targets(targets)
    document = {
        "benchmark": "decode",
        "is_correct": True,
        "conditions": before,
        "load_average_after": conditions()["load_average"],
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "models": shapes,
        "num_speculative_tokens": arguments.drafts,
        "new_tokens": arguments.tokens,
        "prompts": len(prompts),
        "prompt_tokens": len(prompts[0]),
        "greedy_check": greedy,
        "targets": targets_json(targets),
        "results": [{k: v for k, v in result.items() if k != "samples"} for result in results],
        "round_costs": costs,
    }
    if arguments.picture is not None:
        from picture import draw_decode

        draw_decode(results, describe(before), arguments.picture)
    finish(document, {_key(result): result["samples"] for result in results}, arguments.json)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", default="pocket")
    parser.add_argument("--draft", default="pocket-draft")
    parser.add_argument("--drafts", type=int, default=4, help="drafts a round, K")
    parser.add_argument("--tokens", type=int, default=128, help="new tokens a prompt")
    parser.add_argument("--prompts", type=int, default=len(PROMPTS), help="how many of them")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--device", default="cpu", help="where all models run: cpu or cuda")
    parser.add_argument("--threads", type=int, nargs="+", help="of torch; default 1 and all")
    parser.add_argument("--rounds", type=int, default=len(PROMPTS), help="samples of each decoder")
    parser.add_argument("--checked-tokens", type=int, default=64, help="of the greedy check")
    parser.add_argument("--quick", action="store_true", help="toy sizes, in seconds")
    parser.add_argument("--json", type=Path, help="where the raw samples go")
    parser.add_argument("--picture", type=Path, help="where a chart goes; needs matplotlib")
    arguments = parser.parse_args()
    arguments.threads = [1] if arguments.device != "cpu" else thread_counts(arguments.threads)
    if arguments.quick:
        arguments.batch, arguments.threads, arguments.rounds = [1, 2], [1], 1
        arguments.tokens, arguments.checked_tokens, arguments.prompts = 8, 8, 2
    return arguments


def _measure_all(
    decoders: dict[str, Decoder], prompts: list[list[int]], arguments: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        for batch in arguments.batch:
            for temperature in TEMPERATURES if batch == 1 else TEMPERATURES[:1]:
                # assisted generation serves one prompt at a time
                chosen = {
                    name: decoder
                    for name, decoder in decoders.items()
                    if batch == 1 or name not in (HF_ASSISTED, HF_ASSISTED_K)
                }
                case = {"threads": threads, "batch": batch, "temperature": temperature}
                print(f"measuring {case}", file=sys.stderr, flush=True)
                # every prompt comes up equally often, and a large batch needs fewer rounds
                rounds = arguments.rounds if batch == 1 else -(-arguments.rounds // 4)
                yield {**case, **_measure(chosen, prompts, case, arguments.tokens, rounds)}


def _measure(
    decoders: dict[str, Decoder],
    prompts: list[list[int]],
    case: dict[str, Any],
    num_tokens: int,
    rounds: int,
) -> dict[str, Any]:
    lengths: dict[str, list[float]] = {name: [] for name in decoders}

    def timed(name: str, number: int) -> float:
        batch = case["batch"]
        chosen = [prompts[(number + row) % len(prompts)] for row in range(batch)]
        job = Job(chosen, num_tokens, case["temperature"], seed=1000 * (number + 1))
        begin = time.perf_counter()
        answer = decoders[name](job)
        seconds = time.perf_counter() - begin
        assert all(len(ids) == num_tokens for ids in answer.token_ids), name
        lengths[name] += [metrics.acceptance_length for metrics in answer.metrics]
        return batch * num_tokens / seconds

    subjects = {name: lambda number, name=name: timed(name, number) for name in decoders}
    samples = interleave(subjects, rounds)
    pairs = [(DRAFT, PLAIN), (NGRAM, PLAIN), (PLAIN, HF_PLAIN)]
    pairs += [(DRAFT, name) for name in (HF_PLAIN, HF_ASSISTED, HF_ASSISTED_K) if name in decoders]
    return {
        "tokens_per_second": {name: _rounded(spread(speeds)) for name, speeds in samples.items()},
        "acceptance_length": {n: round(statistics.mean(x), 3) for n, x in lengths.items() if x},
        "ratios": {
            f"{above} / {below}": _rounded(paired_ratio(samples[above], samples[below]))
            for above, below in pairs
        },
        "samples": samples,
    }


def _measure_costs(
    llms: dict[str, LLM], prompts: list[list[int]], arguments: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        for batch in arguments.batch:
            for name, llm in llms.items():
                chosen = [prompts[row % len(prompts)] for row in range(batch)]
                job = Job(chosen, arguments.tokens, temperature=1.0, seed=7)
                costs = round_costs(llm, job)
                yield {
                    "threads": threads,
                    "batch": batch,
                    "mode": name,
                    **{part: _rounded(value) for part, value in costs.items()},
                }


def _prompts(target: CausalLM) -> list[list[int]]:
    """The openings as ids, cut to one length so that a batch needs no padding."""
    encoded = [target.tokenizer.encode(text) for text in PROMPTS]
    length = min(len(ids) for ids in encoded)
    return [ids[:length] for ids in encoded]


def _shape(lm: CausalLM) -> dict[str, Any]:
    config = lm.model.config
    return {
        "name": lm.name,
        "type": config.model_type,
        "hidden_size": config.hidden_size,
        "layers": config.num_hidden_layers,
        "vocabulary": lm.vocab_size,
        "parameters": lm.num_parameters,
        "dtype": str(lm.dtype).removeprefix("torch."),
        "attention": config._attn_implementation,
        "packed_layers": lm.num_packed_layers,
    }


def _silence() -> None:
    """Keeps notices of transformers out of the report."""
    hf_logging.set_verbosity(logging.CRITICAL)
    hf_logging.disable_progress_bar()
    warnings.filterwarnings("ignore", module=r"transformers\.")


def _targets(results: list[dict[str, Any]], costs: list[dict[str, Any]]) -> Iterator[Target]:
    for result in results:
        if result["batch"] != 1:
            continue
        where = f"batch 1, T = {result['temperature']:g}, {result['threads']} threads"
        ratios = {name: ratio["median"] for name, ratio in result["ratios"].items()}
        yield Target(f"{DRAFT} / {PLAIN}, {where}", ratios[f"{DRAFT} / {PLAIN}"], 1.3)
        assisted = min(ratios[f"{DRAFT} / {name}"] for name in (HF_ASSISTED, HF_ASSISTED_K))
        yield Target(f"{DRAFT} / best hf assisted, {where}", assisted, 1.0)
        yield Target(f"{PLAIN} / {HF_PLAIN}, {where}", ratios[f"{PLAIN} / {HF_PLAIN}"], 1.0)
    for one in results:
        for eight in results:
            same = all(one[name] == eight[name] for name in ("threads", "temperature"))
            if same and (one["batch"], eight["batch"]) == (1, 8):
                for mode in (PLAIN, DRAFT):
                    speeds = [case["tokens_per_second"][mode]["median"] for case in (eight, one)]
                    name = f"batch 8 / batch 1, {mode}, {one['threads']} threads"
                    yield Target(name, round(speeds[0] / speeds[1], 3), 2.5)
    for cost in costs:
        if cost["batch"] == 1:
            name = f"own ms a round, {cost['mode']}, batch 1, {cost['threads']} threads"
            yield Target(name, cost["own_ms"]["median"], 1.0, at_least=False)


def _show(results: list[dict[str, Any]], costs: list[dict[str, Any]]) -> None:
    rows = []
    for result in results:
        for name, speed in result["tokens_per_second"].items():
            length = result["acceptance_length"].get(name)
            against = result["ratios"].get(f"{name} / {PLAIN}")
            rows.append(
                (
                    name,
                    *(f"{result[field]:g}" for field in ("batch", "temperature", "threads")),
                    f"{speed['median']:.1f}",
                    f"{speed['p25']:.1f} to {speed['p75']:.1f}",
                    "" if length is None else f"{length:.2f}",
                    "" if against is None else f"{against['median']:.2f}",
                )
            )
    columns = ("decoder", "batch", "T", "threads", "tokens/s", "quartiles")
    show_table("Decoding", (*columns, "tokens a round", "/ plain"), rows)
    parts = ("round_ms", "forward_ms", "own_ms")
    rows = [
        (
            cost["mode"],
            *(str(cost[field]) for field in ("batch", "threads")),
            *(f"{cost[part]['median']:.3f}" for part in parts),
            f"{cost['own_ms']['p25']:.3f} to {cost['own_ms']['p75']:.3f}",
        )
        for cost in costs
    ]
    title = "A round: wall, inside the networks' forward, and the rest, milliseconds"
    show_table(title, ("mode", "batch", "threads", *parts, "own quartiles"), rows)


def _key(result: dict[str, Any]) -> str:
    return f"threads {result['threads']}/batch {result['batch']}/T {result['temperature']:g}"


def _rounded(values: Any) -> dict[str, float]:
    return {name: float(f"{value:.4g}") for name, value in values._asdict().items()}


if __name__ == "__main__":
    main()
