"""Requests that ask for everything at once, in one launch a round: each is its solo run.

Greedy next to hot next to a grammar next to penalties, with drafts of different number, under each
rule. A table's logits do not depend on the batch, so nothing but the batch could make a difference;
tokens, their sources and their logprobs are compared with `==`.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from fairdraft import LLM, SamplingParams, StructuredOutputsParams, ops
from fairdraft.engine.round import RoundRunner
from fairdraft.speculators import Proposal
from tests.engine.toys import letter_tokenizer, table_model

pytestmark = pytest.mark.skipif(
    find_spec("llguidance") is None, reason="the extra `grammar` is not installed"
)

LETTERS = "0123456789abcdef"
END, SIZE = len(LETTERS), len(LETTERS) + 1
#: drafts of the engine; requests may ask for fewer
K = 4


def digits(pattern: str) -> dict[str, Any]:
    return {"structured_outputs": StructuredOutputsParams(regex=pattern)}


#: what requests of one batch ask for, side by side
ASKED: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "logprobs": 2},
    "hot": {"temperature": 1.8},
    "a grammar": {**digits("[0-9]{3,8}"), "logprobs": 0},
    "penalties": {"repetition_penalty": 1.4, "frequency_penalty": 0.7, "presence_penalty": -0.5},
    "greedy, a grammar, penalties": {
        "temperature": 0.0,
        "frequency_penalty": 1.5,
        **digits("([0-9][a-f])+"),
    },
    "no drafts": {"num_speculative_tokens": 0, "temperature": 0.7},
    "a filter, one draft": {"num_speculative_tokens": 1, "top_k": 3},
    "a hot grammar, two drafts": {
        "num_speculative_tokens": 2,
        "temperature": 1.5,
        "min_p": 0.02,
        **digits("[a-f]*7"),
    },
    "bias and bad words, two samples": {
        "n": 2,
        "logit_bias": {5: 2.0, 7: -3.0},
        "bad_words_ids": [[3], [4, 5]],
    },
    "n-grams, three drafts": {
        "num_speculative_tokens": 3,
        "no_repeat_ngram_size": 2,
        "allowed_token_ids": list(range(2, 12)),
        "top_p": 0.9,
    },
    "ends late": {"min_tokens": 3, "stop_token_ids": [0, 1, 2, 3], "temperature": 1.2},
}
#: drafts by how they come about
DRAFTS: dict[str, dict[str, Any]] = {
    "sampled": {},
    "processed": {"process_draft_logits": True},
    "best": {"draft_sample_method": "greedy"},
    "ngram": {"method": "ngram", "prompt_lookup_min": 1},
}


def requests(
    names: tuple[str, ...], max_tokens: int
) -> tuple[list[list[int]], list[SamplingParams]]:
    prompts = [[1, 2, 3, 1, 2, 9, 4, 1, 2][: 3 + at % 7] for at in range(len(names))]
    params = [
        SamplingParams(**{"seed": seed, "max_tokens": max_tokens, **ASKED[name]})
        for seed, name in enumerate(names)
    ]
    return prompts, params


def engine(rule: str, drafts: str, **options: Any) -> LLM:
    generator = np.random.default_rng(0)
    table = generator.normal(size=(SIZE, SIZE)).astype(np.float32) * 1.5
    table[:, END] -= 2
    config = {"num_speculative_tokens": K, "rejection_sample_method": rule} | DRAFTS[drafts]
    if "method" not in config:
        noisy = table + generator.normal(size=table.shape).astype(np.float32)
        config |= {"model": table_model(noisy, eos_token_id=END), "check_vocabulary": False}
    return LLM(
        table_model(table, eos_token_id=END),
        tokenizer=letter_tokenizer(LETTERS),
        speculative_config=config,
        max_num_seqs=len(ASKED) + 1,
        **options,
    )


class Launches:
    """Counts rounds and what each verified in one call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rounds = 0
        self.calls: list[dict[str, Any]] = []
        decide, verify = RoundRunner.decide, ops.verify_chain

        def deciding(runner: Any, *args: Any) -> Any:
            self.rounds += 1
            return decide(runner, *args)

        def verifying(logits: Any, drafts: Any, counts: Any, **given: Any) -> Any:
            temperature = np.broadcast_to(np.asarray(given["temperature"]), len(counts))
            self.calls.append({"drafts": counts.tolist(), "temperature": temperature.tolist()})
            return verify(logits, drafts, counts, **given)

        monkeypatch.setattr(RoundRunner, "decide", deciding)
        monkeypatch.setattr(ops, "verify_chain", verifying)


def whole(output: Any) -> list[tuple[Any, ...]]:
    return [
        (sample.token_ids, sample.token_sources, sample.logprobs, sample.finish_reason)
        for sample in output.outputs
    ]


def check(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, max_tokens: int, names: tuple[str, ...] = (*ASKED,)
) -> tuple[Launches, list[Any]]:
    """Decodes requests together, then each alone, and compares."""
    prompts, params = requests(names, max_tokens)
    with monkeypatch.context() as patch:
        launches = Launches(patch)
        together = llm.generate(prompts, params)
    assert [output.error for output in together] == [None] * len(names)
    for name, prompt, item, output in zip(names, prompts, params, together, strict=True):
        [alone] = llm.generate([prompt], item)
        assert whole(alone) == whole(output), name
    return launches, together


@pytest.mark.parametrize(
    ("rule", "drafts"),
    [
        *(("standard", drafts) for drafts in DRAFTS),
        *(("block", drafts) for drafts in ("sampled", "processed")),
        *(("common_noise", drafts) for drafts in ("sampled", "best")),
    ],
)
def test_every_request_is_its_solo_run(
    monkeypatch: pytest.MonkeyPatch, rule: str, drafts: str
) -> None:
    launches, outputs = check(engine(rule, drafts), monkeypatch, 12)
    # one call a round, for all rows of it
    assert len(launches.calls) == launches.rounds > 3
    first = launches.calls[0]
    assert len(first["drafts"]) == len(ASKED) + 1
    assert {0.0, 1.0, 1.5, 1.8} <= set(first["temperature"])
    if drafts != "ngram":
        assert set(first["drafts"]) == {0, 1, 2, 3, 4}
    # drafts stood and fell, beside rows that had none
    sources = {source for o in outputs for s in o.outputs for source in s.token_sources}
    last = {"target"} if rule == "common_noise" else {"residual", "bonus", "target"}
    assert sources >= {"draft"} | last
    texts = {name: output.outputs[0].text for name, output in zip(ASKED, outputs, strict=True)}
    assert texts["a grammar"].isdigit() and set(texts["a hot grammar, two drafts"]) <= {*"abcdef7"}


@pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels run on the CPU interpreted alone"
)
def test_every_request_is_its_solo_run_in_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """One round; rows of the op's batches are compared one by one in `tests/ops/triton`."""
    pytest.importorskip("triton")
    names = ("greedy", "hot", "a grammar", "penalties", "no drafts", "a filter, one draft")
    llm = engine("standard", "sampled", impl="triton", enforce_eager=True)
    # the interpreter computes on NaN and inf that rows hold
    with np.errstate(all="ignore"):
        launches, _ = check(llm, monkeypatch, 2, names)
    assert len(launches.calls) == launches.rounds
    assert len(launches.calls[0]["drafts"]) == len(names)


def test_noise_that_knows_its_row_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a request's tests and replacements are named by its row of the batch."""
    from fairdraft.ops import verify

    original, calls = verify.chain_addresses, []

    def by_row(at: Any, num_drafts: np.ndarray, depth: int, **options: Any) -> Any:
        calls.append(len(num_drafts))
        return original(
            (at[0] + np.arange(len(num_drafts)).astype(np.uint64), *at[1:]),
            num_drafts,
            depth,
            **options,
        )

    monkeypatch.setattr(verify, "chain_addresses", by_row)
    with pytest.raises(AssertionError, match="hot"):
        check(engine("standard", "sampled"), monkeypatch, 12)
    assert calls


def test_drafts_that_know_the_batch_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: every row drafts as many as the row that asked for fewest; greedy sources tell."""
    original, calls = RoundRunner._propose, []

    def fewest(self: Any, speculator: Any, rows: Any, anchor: Any, limits: Any) -> Any:
        calls.append(limits.min())
        limits = np.minimum(limits, limits[limits > 0].min())
        proposal = original(self, speculator, rows, anchor, limits)
        assert isinstance(proposal, Proposal)
        return proposal

    monkeypatch.setattr(RoundRunner, "_propose", fewest)
    with pytest.raises(AssertionError, match="greedy"):
        check(engine("standard", "sampled"), monkeypatch, 12)
    assert calls
