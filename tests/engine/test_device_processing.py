"""Rows that kernels process in the engine, round by round, beside the same on the host, by `==`.

Kernels run in Triton's interpreter; with a GPU the engine's own tests there run them compiled.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fairdraft import LLM, SamplingParams
from fairdraft.engine.processing.draft import DraftProcessing
from fairdraft.engine.processing.target import ProcessedRows, process_target
from fairdraft.ops import Impl
from fairdraft.ops.processors import Tally
from tests.engine.test_processors import KINDS
from tests.engine.toys import speculating, table_model

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels run on the CPU interpreted alone"
)
V, LENGTH, NUM_DRAFTS = 97, 6, 2


def same(got: Tensor, expected: Tensor) -> bool:
    return bool(((got == expected) | (got.isnan() & expected.isnan())).all())


class Twice:
    """Processes every round on the host and by kernels; counts rounds, rows and errors."""

    def __init__(self) -> None:
        self.rounds = self.drafts = 0
        self.errors: list[str] = []

    def target(
        self, rows: Any, proposal: Any, logits: Tensor, *, keep_raw: bool, impl: Impl
    ) -> ProcessedRows:
        raw = logits.clone()
        host = process_target(rows, proposal, logits, keep_raw=keep_raw, impl="cpu")
        got = process_target(rows, proposal, raw, keep_raw=keep_raw, impl="triton")
        assert same(got.logits, host.logits), "rows differ"
        walked = np.full(rows.num_rows, logits.shape[1] - 1)
        cuts = [found.cut(walked.copy(), walked.copy()) for found in (host, got)]
        assert cuts[0] == cuts[1], "errors differ"
        self.rounds += 1
        self.errors += cuts[0].values()
        return got

    def draft(self, processing: DraftProcessing, logits: Tensor, *args: Any) -> Tensor:
        host, got = (
            DraftProcessing(processing._rows, impl)(logits, *args) for impl in ("cpu", "triton")
        )
        assert same(got, host), "drafts' rows differ"
        self.drafts += len(logits)
        return got


@pytest.fixture
def twice(monkeypatch: pytest.MonkeyPatch) -> Twice:
    both = Twice()
    monkeypatch.setattr("fairdraft.engine.round.process_target", both.target)

    class Both(DraftProcessing):
        def __call__(self, *args: Any) -> Tensor:
            return both.draft(self, *args)

    monkeypatch.setattr("fairdraft.engine.round.DraftProcessing", Both)
    return both


def pair(**options: Any) -> LLM:
    """A target and a draft that is wrong about half the time."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(V, V)).astype(np.float32)
    noise = rng.normal(size=(V, V)).astype(np.float32)
    return speculating(table_model(table), table_model(table + noise), NUM_DRAFTS, **options)


def asked(kind: str, seed: int, **options: Any) -> SamplingParams:
    values: dict[str, Any] = {"max_tokens": LENGTH, "seed": seed}
    return SamplingParams(**values | KINDS[kind] | options)


@pytest.mark.parametrize("process_draft_logits", [False, True])
def test_every_parameter_in_one_batch(twice: Twice, process_draft_logits: bool) -> None:
    """One request of each kind, more than fit at once, so that rows come and go."""
    params = [asked(kind, seed, min_tokens=3) for seed, kind in enumerate(KINDS)]
    params[-1] = asked("several", 1, n=2)
    llm = pair(max_num_seqs=8, process_draft_logits=process_draft_logits)
    outputs = llm.generate([[1, 2, 3, 1, 2, 5][: 1 + i % 6] for i in range(len(params))], params)
    assert not any(output.error for output in outputs)
    assert twice.rounds >= 4 and not twice.errors
    assert bool(twice.drafts) == process_draft_logits


@pytest.mark.parametrize("process_draft_logits", [False, True])
def test_rows_without_a_token_and_processors_that_fail(
    twice: Twice, process_draft_logits: bool
) -> None:
    def failing(input_ids: Any, scores: Any) -> Any:
        return scores * torch.nan if input_ids.shape[1] == 4 else scores

    params = [
        SamplingParams(seed=1, max_tokens=9, allowed_token_ids=[4, 5], no_repeat_ngram_size=1),
        SamplingParams(seed=2, max_tokens=9, logits_processors=[failing]),
        SamplingParams(seed=3, max_tokens=4),
    ]
    outputs = pair(process_draft_logits=process_draft_logits).generate([[0, 1]] * 3, params)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [2, 2, 4]
    names = "allowed_token_ids and no_repeat_ngram_size"
    assert outputs[0].error == f"no token is left after 2 output tokens; loosen {names}"
    assert "failing failed: it returned NaN or +inf" in str(outputs[1].error)
    assert len(twice.errors) >= 2 and outputs[2].error is None


def test_grammars_mask_by_bits(twice: Twice) -> None:
    pytest.importorskip("llguidance", reason="the extra `grammar` is not installed")
    from tests.engine.test_structured_outputs import llm_of, preferring, structured

    params = SamplingParams(
        seed=1, n=2, max_tokens=9, structured_outputs=structured(regex="[0-9]{4}")
    )
    llm = llm_of(preferring(12), preferring(3, 12), 3, process_draft_logits=True)
    [output] = llm.generate([[1]], params)
    assert all(sample.text.isdigit() and len(sample.text) == 4 for sample in output.outputs)
    assert twice.rounds and twice.drafts and not twice.errors


def test_a_count_that_is_kept_wrongly_is_seen(
    twice: Twice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: what was decided last is counted again in the next round."""
    count = Tally.count

    def again(self: Tally, text: np.ndarray, prompt_length: int) -> None:
        self.length = max(self.length - 1, 0)
        count(self, text, prompt_length)

    monkeypatch.setattr(Tally, "count", again)
    with pytest.raises(AssertionError, match="rows differ"):
        pair().generate([[1, 2, 3]], asked("frequency_penalty", 1))
