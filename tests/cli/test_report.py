"""Figures of a run: added up, tabled and written as JSON."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from fairdraft.cli.compare import Comparison, compare
from fairdraft.cli.document import document, dumps
from fairdraft.cli.session import Job, Run
from fairdraft.cli.summary import EngineSeconds, Summary, summarize
from fairdraft.cli.table import MAX_LISTED_KEYS, summary_table
from fairdraft.cli.transcript import Transcript
from fairdraft.engine import CompletionOutput, RequestMetrics, RequestOutput

KEY = "0123456789abcdef"


def output(
    number: int = 0,
    token_ids: tuple[int, ...] = (5, 6, 7),
    *,
    index: int = 0,
    text: str = "abc",
    finished: bool = True,
    error: str | None = None,
) -> RequestOutput:
    metrics = RequestMetrics(
        rounds=2,
        num_emitted_tokens=len(token_ids),
        num_draft_tokens=4,
        num_accepted_tokens=1,
        drafted_per_position=[2, 2],
        accepted_per_position=[1, 0],
    )
    sample = CompletionOutput(
        index=index,
        text=text,
        token_ids=list(token_ids),
        token_sources=["draft"] * len(token_ids),
        finish_reason="length" if finished else None,
        pieces=[(text, "draft")],
    )
    return RequestOutput(
        request_id=str(number),
        prompt="p",
        prompt_token_ids=[1],
        outputs=[sample],
        finished=finished,
        noise_key=KEY,
        metrics=metrics if finished else None,
        error=error,
    )


def two_requests() -> Summary:
    outputs = [output(0), output(1, (5,), error="NaN in the logits")]
    return summarize(outputs, 2.0, EngineSeconds(0.5, 1.0, 0.25))


def shown(summary: Summary, keys: list[str], comparison: Comparison | None = None) -> str:
    file = io.StringIO()
    Console(file=file, width=100).print(summary_table(summary, keys, comparison))
    return file.getvalue()


def test_summary_adds_requests_up() -> None:
    summary = two_requests()
    assert (summary.num_requests, summary.num_failed, summary.num_tokens) == (2, 1, 4)
    assert (summary.rounds, summary.target_passes_saved) == (4, 0)
    assert summary.acceptance_per_position == (0.5, 0.0)
    assert summary.tokens_per_second == 2.0 and summary.acceptance_length == 1.0
    assert summary.other_seconds == pytest.approx(0.25)


def test_table_holds_every_figure_and_the_key() -> None:
    text = shown(two_requests(), [KEY])
    for part in (
        "tokens/s",
        "4 tokens in 2.00 s, 2 requests, 1 failed",
        "acceptance length",
        "0.50  0.00",
        "rounds",
        "target passes saved",
        "time in draft",
        "time in target",
        "time in verify",
        f"--noise-key {KEY}",
    ):
        assert part in text
    assert "speed-up" not in text


def test_table_compares_with_plain_decoding() -> None:
    text = shown(two_requests(), [KEY], Comparison((30.0, 20.0, 40.0), (10.0, 10.0, 10.0), True))
    assert "3.00x" in text and "2.00 to 4.00" in text and "same greedy text" in text


def test_table_of_many_requests_stays_short() -> None:
    text = shown(two_requests(), [KEY] * (MAX_LISTED_KEYS + 3))
    assert "and 3 more" in text


def test_runs_alternate_and_greedy_texts_are_compared() -> None:
    calls: list[str] = []

    def side(name: str, token_ids: tuple[int, ...]):
        def generate() -> list[RequestOutput]:
            calls.append(name)
            return [output(0, token_ids)]

        return generate

    fast, slow = side("fast", (1, 2)), side("slow", (1, 2))
    found = compare(fast, slow, greedy=True)
    assert calls == ["slow", "fast", "slow", "slow", "fast", "fast", "slow"]
    assert found.same_greedy_text is True and len(found.ratios) == 3
    assert compare(fast, side("slow", (1, 3)), greedy=True).same_greedy_text is False
    assert compare(fast, side("slow", (1, 3)), greedy=False).same_greedy_text is None


def test_transcript_joins_events_in_the_order_of_requests() -> None:
    transcript = Transcript()
    for event in (
        output(10, (9,), text="z"),
        output(2, (1,), index=1, text="b", finished=False),
        output(2, (2,), index=0, text="a", finished=False),
        output(2, (3, 4), index=1, text="cd"),
    ):
        transcript.add(event)
    first, second = transcript.requests()
    assert (first.request_id, second.request_id) == ("2", "10")
    assert [sample.text for sample in first.outputs] == ["a", "bcd"]
    assert first.outputs[1].token_ids == [1, 3, 4] and first.outputs[1].finish_reason == "length"
    assert first.metrics is not None and first.finished
    assert transcript.pieces("2", 1) == [("b", "draft"), ("cd", "draft")]


def test_document_is_strict_json_with_texts_and_figures() -> None:
    outputs = [output(0), output(1, error="broken")]
    summary = summarize(outputs, 0.0, EngineSeconds())
    job = Job("pocket", None, {"impl": "auto"}, {"temperature": float("nan")}, ["p"])
    run = Run(outputs, summary, Transcript(), interrupted=True)
    loaded = json.loads(dumps(document(job, run, Comparison((2.0,), (1.0,), None))))
    assert loaded["schema"] == "fairdraft.generate/1" and loaded["interrupted"] is True
    assert loaded["sampling_params"]["temperature"] is None
    assert loaded["requests"][0]["outputs"][0]["token_ids"] == [5, 6, 7]
    assert loaded["requests"][1]["error"] == "broken"
    assert loaded["requests"][0]["noise_key"] == KEY
    assert loaded["comparison"]["ratio_median"] == 2.0
    assert loaded["versions"]["torch"]
    page = (Path(__file__).resolve().parents[2] / "docs" / "generate.md").read_text("utf-8")
    request = loaded["requests"][0]
    for key in (*loaded, *request, *request["outputs"][0]):
        assert f"`{key}`" in page, f"docs/generate.md does not say what {key} holds"
