"""Every speculator of a target on the same prompts, in turns with plain decoding."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any

from fairdraft.engine.choice.candidates import Candidate, available, made_at_most
from fairdraft.engine.choice.prompts import default_prompts
from fairdraft.engine.llm import LLM
from fairdraft.engine.measuring.timing import Spread, interleave, paired_ratio, spread
from fairdraft.engine.measuring.workload import Runs, Workload
from fairdraft.engine.output import RequestMetrics
from fairdraft.engine.prompts import Prompt, read_prompt
from fairdraft.engine.speculation import num_parameters
from fairdraft.models import CausalLM
from fairdraft.ops.arithmetic import GREEDY_TEMPERATURE
from fairdraft.stats import ratio_interval

PLAIN = "plain"
#: fewest prompts that an interval is given for: of two or three it says next to nothing
MIN_PROMPTS = 4

#: requests done, requests in all, seconds so far
OnSample = Callable[[int, int, float], None]


@dataclass(frozen=True)
class Cell:
    """One speculator at one temperature.

    Attributes:
        speculator: Its name; "plain" for none.
        temperature: Of the requests.
        num_drafts: K, at most as asked for; 0 for plain decoding.
        parameters: Of what drafts, what it shares with the target apart.
        rounds: Verified rounds, over all samples.
        tokens: Emitted tokens.
        acceptance_length: Tokens a round, the one after the drafts included.
        interval: Of it at 95%, over prompts; None of fewer than MIN_PROMPTS.
        by_draft: Of the drafts verified at each place, the share that stood.
        tokens_per_second: Of a turn, all its requests together and their prompts included.
        over_plain: Ratio to plain decoding of the same prompts in the same turn.
        draft_ms: Drafting, a round; None where it runs within `verify_ms`, as in CUDA graphs.
        verify_ms: Target and verification, a round, prompts apart.
        other_ms: The rest of a round: commit and bookkeeping.
        same_text: Whether its greedy texts are those of plain decoding; None if sampled.
        num_same_alone: Of the first batch's requests those whose text, token by token, is the one
            that they get alone under the same seed; None of batches of one.
    """

    speculator: str
    temperature: float
    num_drafts: int
    parameters: int
    rounds: int
    tokens: int
    acceptance_length: float
    interval: tuple[float, float] | None
    by_draft: list[float]
    tokens_per_second: Spread
    over_plain: Spread
    draft_ms: Spread | None
    verify_ms: Spread
    other_ms: Spread
    same_text: bool | None
    num_same_alone: int | None


@dataclass(frozen=True)
class Measurement:
    """What was measured.

    Attributes:
        target: Name, parameters, dtype and device.
        num_prompts: Prompts.
        prompt_tokens: Ids of the shortest and of the longest prompt.
        num_tokens: New tokens of each request; the end of a text is ignored.
        batch: Requests at a time.
        samples: Turns of each cell, so many requests each, in turns over the prompts.
        cells: Plain decoding first, by temperature.
        refused: Speculator to the reason why it was not measured.
    """

    target: dict[str, Any]
    num_prompts: int
    prompt_tokens: tuple[int, int]
    num_tokens: int
    batch: int
    samples: int
    cells: list[Cell]
    refused: dict[str, str]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for files; figures to four digits."""
        return _rounded(asdict(self))


def measure_speculators(
    target: CausalLM,
    candidates: Sequence[Candidate] | None = None,
    *,
    prompts: Sequence[Prompt] | None = None,
    num_drafts: int = 4,
    num_tokens: int = 128,
    batch: int = 1,
    temperatures: Sequence[float] = (0.0, 0.7, 1.0),
    samples: int | None = None,
    on_sample: OnSample = lambda done, total, seconds: None,
    **engine: Any,
) -> Measurement:
    """Times all cells in turns, a batch of requests each, after one turn that is thrown away.

    Args:
        target: The loaded target.
        candidates: Speculators; None for what is `available`.
        prompts: What is continued; a cell's request i continues prompt i modulo their number. None
            for `default_prompts`.
        num_drafts: K of whoever does not say otherwise; a head that takes fewer drafts fewer.
        num_tokens: New tokens of each request.
        temperatures: 0 is greedy.
        batch: Requests at a time. Of several the texts of the first are then made alone as well,
            and compared.
        samples: Turns of each cell, so many requests each; None for the fewest in which prompts
            are continued equally often.
        on_sample: Called after each turn.
        **engine: Further arguments of `LLM`.

    Raises:
        ValueError: If a value cannot be used, or a speculator that was asked for.
        RequestFailed: If a request ends in an error.
    """
    if prompts is None:
        prompts = default_prompts(batch)
    workload = Workload(prompts, num_tokens, batch)
    samples = workload.num_even_turns if samples is None else samples
    if samples < 1:
        raise ValueError(f"samples={samples!r}: must be at least 1")
    if not temperatures or len(set(temperatures)) < len(temperatures):
        raise ValueError(f"temperatures={list(temperatures)!r}: give one or more, each once")
    if batch > 1:
        engine = {"max_num_seqs": batch, **engine}
    llms, refused = _llms(target, candidates, num_drafts, engine)
    keys = [(name, float(temperature)) for temperature in temperatures for name in llms]
    runs = {key: Runs() for key in keys}
    num_turns = samples + 1 + (batch > 1)
    total, begin, num_done = len(keys) * num_turns * batch, time.perf_counter(), 0

    def told() -> None:
        nonlocal num_done
        num_done += batch
        on_sample(num_done, total, time.perf_counter() - begin)

    def timed(key: tuple[str, float], turn: int) -> float:
        speed = workload.run(llms[key[0]], key[1], turn, runs[key])
        told()
        return speed

    labels = {f"{name} {temperature!r}": (name, temperature) for name, temperature in keys}
    interleave(
        {label: lambda number, key=key: timed(key, number) for label, key in labels.items()},
        samples,
    )
    for name, temperature in keys if batch > 1 else []:
        workload.compare_alone(llms[name], temperature, runs[name, temperature])
        told()
    cells = [_cell(key, llms[key[0]], runs[key], runs[PLAIN, key[1]], len(prompts)) for key in keys]
    context = llms[PLAIN].max_model_len
    lengths = [
        len(read_prompt(prompt, f"prompts[{number}]", target, context)[1])
        for number, prompt in enumerate(prompts)
    ]
    return Measurement(
        target=_described(target),
        num_prompts=min(samples * batch, len(prompts)),
        prompt_tokens=(min(lengths), max(lengths)),
        num_tokens=num_tokens,
        batch=batch,
        samples=samples,
        cells=cells,
        refused=refused,
    )


def _described(target: CausalLM) -> dict[str, Any]:
    return {
        "name": target.name,
        "parameters": target.num_parameters,
        "dtype": str(target.dtype).removeprefix("torch."),
        "device": str(target.device),
    }


def _llms(
    target: CausalLM,
    candidates: Sequence[Candidate] | None,
    num_drafts: int,
    engine: dict[str, Any],
) -> tuple[dict[str, LLM], dict[str, str]]:
    """Engines by name, plain decoding first, and the reasons why others are not among them."""
    llms: dict[str, LLM] = {PLAIN: LLM(target, **engine)}
    refused: dict[str, str] = {}
    for candidate in available(target) if candidates is None else candidates:
        try:
            llm = _llm(target, candidate, num_drafts, engine)
            lossy = llm.engine.lossy
            llms[candidate.name + (f" (lossy: {lossy})" if lossy else "")] = llm
        except ValueError as error:
            if candidate.is_asked:
                raise
            refused[candidate.name] = str(error)
    return llms, refused


def _llm(target: CausalLM, candidate: Candidate, num_drafts: int, engine: dict[str, Any]) -> LLM:
    if candidate.config.get("method") == "prediction":
        raise ValueError(
            "method 'prediction' drafts what a request predicts, and the requests of a measurement "
            "predict nothing; generate with it on texts whose outputs you expect"
        )

    def make(count: int) -> LLM:
        asked = {**candidate.config, "num_speculative_tokens": count}
        return LLM(target, speculative_config=asked, **engine)

    return made_at_most(candidate.config, make, num_drafts)[1]


def _cell(key: tuple[str, float], llm: LLM, runs: Runs, plain: Runs, num_prompts: int) -> Cell:
    (name, temperature), metrics = key, runs.metrics
    rounds = sum(m.rounds for m in metrics)
    tokens = sum(m.num_emitted_tokens for m in metrics)
    # the greedy texts of one prompt are equal, so prompts vary and samples need not
    groups = [metrics[first::num_prompts] for first in range(min(num_prompts, len(metrics)))]
    num_drafts = 0 if llm.config is None else llm.config.num_speculative_tokens
    interval = None
    if len(groups) >= MIN_PROMPTS:
        interval = ratio_interval(
            [sum(m.num_emitted_tokens for m in group) for group in groups],
            [sum(m.rounds for m in group) for group in groups],
            # a round emits 1 to K + 1 tokens
            bounds=(1.0, num_drafts + 1.0),
        )
    accepted = _sums([m.accepted_per_position for m in metrics])
    drafted = _sums([m.drafted_per_position for m in metrics])
    draft = [m.draft_seconds for m in metrics]
    verify = [m.target_seconds + m.verify_seconds - m.prefill_seconds for m in metrics]
    parts = [m.draft_seconds + m.target_seconds + m.verify_seconds for m in metrics]
    other = [m.total_seconds - part for m, part in zip(metrics, parts, strict=True)]
    is_apart = any(draft) or not sum(drafted)
    return Cell(
        speculator=name,
        temperature=temperature,
        num_drafts=num_drafts,
        parameters=num_parameters(llm.speculator),
        rounds=rounds,
        tokens=tokens,
        acceptance_length=tokens / rounds,
        interval=interval,
        by_draft=[a / d if d else 0.0 for a, d in zip(accepted, drafted, strict=True)],
        tokens_per_second=spread(runs.speeds),
        over_plain=paired_ratio(runs.speeds, plain.speeds),
        draft_ms=_per_round(draft, metrics) if is_apart else None,
        verify_ms=_per_round(verify, metrics),
        other_ms=_per_round(other, metrics),
        same_text=runs.token_ids == plain.token_ids if temperature < GREEDY_TEMPERATURE else None,
        num_same_alone=runs.num_same_alone,
    )


def _per_round(seconds: list[float], metrics: list[RequestMetrics]) -> Spread:
    return spread([1e3 * s / m.rounds for s, m in zip(seconds, metrics, strict=True)])


def _sums(lists: list[list[int]]) -> list[int]:
    return [sum(column) for column in zip_longest(*lists, fillvalue=0)]


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, Spread):
        return _rounded(value._asdict())
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value
