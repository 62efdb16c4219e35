"""A trace is judged as what it records; and whatever is wrong in it makes it invalid."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fairdraft.audit import trace_schema
from fairdraft.audit.session import run_audit
from fairdraft.audit.settings import AuditSettings, OraclePolicy
from fairdraft.audit.subject import InvalidSubject
from fairdraft.audit.subjects.markov import MarkovPair
from fairdraft.audit.subjects.trace import TraceSubject
from fairdraft.audit.trace_schema import TraceHeader
from fairdraft.stats.tokens import REST, Source
from tests.audit.traces import LENGTH, NUM_TEXTS, Edit, documents, plain_lines, record, toy, write

LOOSE = AuditSettings(eps=0.15, alpha=1e-9, max_tokens=3_000, oracles=OraclePolicy.SKIP)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace that passes at eps .15, long before its end."""
    path = tmp_path_factory.mktemp("traces") / "good.jsonl"
    record(toy(), path, 4_000)
    return path


def evidence(report: Any) -> tuple[Any, ...]:
    return (
        report.verdict,
        report.num_tokens,
        report.log10_e,
        report.curve,
        report.families,
        report.templates,
        report.slots,
        report.positions,
        report.agreement,
        report.heat,
    )


def test_a_recorded_decoder_gets_the_verdict_of_the_direct_audit(good: Path) -> None:
    direct = run_audit(toy(), LOOSE)
    traced = run_audit(TraceSubject(good, tokens_per_batch=NUM_TEXTS * LENGTH), LOOSE)
    assert direct.verdict.state == "PASS"
    assert evidence(traced) == evidence(direct)


def test_a_planted_fault_is_found_in_its_trace_as_directly(tmp_path: Path) -> None:
    """Logits over 2: the likeliest token loses a quarter of its mass."""
    path = tmp_path / "hot.jsonl.gz"
    subject = toy()
    logits = subject.pair.target_logits
    subject.pair = MarkovPair(logits / 2, subject.pair.draft_logits)
    record(subject, path, 3_000)
    direct = run_audit(subject, LOOSE)
    traced = run_audit(TraceSubject(path, tokens_per_batch=NUM_TEXTS * LENGTH), LOOSE)
    assert direct.verdict.state == "FAIL" and direct.verdict.diagnosis is not None
    assert evidence(traced) == evidence(direct)


def test_lists_and_cells_become_columns(tmp_path: Path) -> None:
    lines = plain_lines(1, 4)
    for line in lines[1:]:
        line.update(ids=[3, 1], token=1, target=[0.1, 0.3])
        if "draft" in line:
            line["draft"] = [0.4, 0.2]
    lines[1].update(before=[2, 0], token=0)
    (batch,) = TraceSubject(write(tmp_path / "t.jsonl", lines)).batches()
    tokens = batch.tokens
    assert tokens.ids is not None and tokens.ids.tolist() == [[3, 1, REST]] * 4
    np.testing.assert_allclose(tokens.target, [[0.1, 0.3, 0.6]] * 4)
    assert tokens.column.tolist() == [2, 1, 1, 1]
    assert tokens.previous.tolist() == [[2, 0], [0, 2], [1, 0], [1, 1]]
    assert tokens.has_draft.tolist() == [True, False, True, False]
    assert tokens.source.tolist() == [Source.UNKNOWN, Source.BONUS] * 2


def test_logprobs_are_read_as_probabilities(tmp_path: Path) -> None:
    lines = plain_lines()
    lines[0]["values"] = "logprobs"
    for line in lines[1:]:
        line["target"] = [*np.log([0.4, 0.6]).tolist(), None, None]
        line["token"] = 1
        line.pop("draft", None)
    (batch,) = TraceSubject(write(tmp_path / "t.jsonl", lines)).batches()
    np.testing.assert_allclose(batch.tokens.target[0], [0.4, 0.6, 0, 0])


def test_an_excluded_token_fails(tmp_path: Path) -> None:
    lines = plain_lines()
    lines[0]["eps0"] = 0.0
    lines[6].update(token=3, target=[0.5, 0.3, 0.2, 0.0])
    report = run_audit(TraceSubject(write(tmp_path / "t.jsonl", lines)), LOOSE)
    assert report.verdict.state == "FAIL" and "probability 0" in report.verdict.sentence


def edited(index: int, **fields: Any) -> Edit:
    def edit(lines: list[dict[str, Any]]) -> None:
        lines[index].update(fields)

    return edit


def without(index: int, name: str) -> Edit:
    def edit(lines: list[dict[str, Any]]) -> None:
        del lines[index][name]

    return edit


def no_drafts(lines: list[dict[str, Any]]) -> None:
    for line in lines[1:]:
        line["source"] = "plain"
        line.pop("draft", None)


def longer_list(lines: list[dict[str, Any]]) -> None:
    for line in lines[1:]:
        line.update(ids=[0, 1], target=[0.4, 0.3], token=0)
        line.pop("draft", None)
    lines[4].update(ids=[0, 1, 2], target=[0.4, 0.3, 0.2], token=2)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (without(3, "slot"), "line 4 .* lacks slot"),
        (without(3, "target"), "line 4 .* lacks target"),
        (without(0, "vocab_size"), "line 1 .* lacks vocab_size"),
        (edited(0, schema="other/2"), "line 1 .*schema is 'other/2'"),
        (edited(0, sampler="dice"), "sampler is 'dice'"),
        (edited(2, drafts=[1.0]), "line 3 .*'drafts', which the schema does not know"),
        (edited(2, target=[0.4, float("nan"), 0.3, 0.3]), "line 3 .*NaN in its target"),
        (edited(2, target=[0.4, 0.3, 0.2, 0.2]), "line 3 .*sums to 1.1"),
        (edited(1, draft=[0.4, 0.3, 0.2, 0.0]), "line 2 .*draft law that sums to 0.9"),
        (edited(2, target=[1.2, -0.2, 0.0, 0.0]), "line 3 .*probability -0.2"),
        (edited(2, target=[0.5, 0.5]), "line 3 .*2 numbers as target, and there are 4"),
        (edited(2, target="f4:??"), "line 3 .*no base64"),
        (edited(0, values="logprobs"), "line 2 .*logprob 0.4"),
        (edited(2, params={"temperature": 0.7}), "line 3 .*verdict is about one sampler"),
        (edited(0, laws="raw", params={"temperature": 0.7}), "raw laws, and with temperature"),
        (edited(2, token=4), "line 3 .*token 4, outside of the vocabulary of 4"),
        (edited(2, ids=[0, 1], target=[0.6, 0.4], token=3), "line 3 .*not among its 2 ids"),
        (edited(2, ids=[0, 9], target=[0.6, 0.3]), "lists the id 9"),
        (edited(2, ids=[0, 0], target=[0.6, 0.3]), "lists an id twice"),
        (longer_list, "line 5 .*list the same number everywhere"),
        (edited(2, source="accepted", drafted=0, token=1), "line 3 .*draft 0 was accepted"),
        (edited(2, source="plain", draft=[0.1, 0.2, 0.3, 0.4]), "no draft was tested, and yet"),
        (no_drafts, "no draft was tested at any of the 12 tokens"),
        (lambda lines: lines.insert(3, lines[2]), "line 4 .*repeats position 1 of request r0"),
        (lambda lines: lines.pop(2), "line 3 .*position 2 of request r0 where 1 is due"),
        (lambda lines: lines.append(lines[1]), "line 14 .*goes on with request r0"),
        (edited(2, seed=9), "line 3 .*another seed"),
        (edited(5, seed=0), "r0 and request r1 have one prompt and one seed"),
        (lambda lines: lines.clear(), "line 1 .*the file is empty"),
        (lambda lines: lines.__delitem__(slice(1, None)), "holds no token"),
    ],
)
def test_a_fault_anywhere_is_invalid_with_its_line(
    edit: Edit, message: str, tmp_path: Path
) -> None:
    lines = plain_lines()
    for line in lines[5:9]:
        line["seed"] = 1
    edit(lines)
    if len(lines) > 6 and lines[5].get("seed") == 0:
        for line in lines[5:9]:
            line["seed"] = 0
    subject = TraceSubject(write(tmp_path / "t.jsonl", lines))
    with pytest.raises(InvalidSubject, match=message):
        list(subject.batches())
    assert run_audit(subject, LOOSE).exit_code == 4


def test_a_fault_after_enough_good_tokens_is_met_all_the_same(good: Path, tmp_path: Path) -> None:
    path = tmp_path / "late.jsonl"
    text = good.read_text()
    path.write_text(text + text.splitlines()[-1] + "\n")
    report = run_audit(TraceSubject(path), LOOSE)
    assert report.exit_code == 4 and "repeats position" in report.verdict.sentence


@pytest.mark.parametrize("is_compressed", [False, True])
def test_a_cut_recording_never_passes_unless_asked(
    is_compressed: bool, good: Path, tmp_path: Path
) -> None:
    path = tmp_path / "cut"
    data = good.read_bytes()
    path.write_bytes(gzip.compress(data, 1)[:-3000] if is_compressed else data[:-100])
    report = run_audit(TraceSubject(path), LOOSE)
    assert report.exit_code == 4 and "breaks off in line" in report.verdict.sentence
    assert "allow_cut" in report.verdict.sentence
    judged = run_audit(TraceSubject(path, allow_cut=True), LOOSE)
    assert judged.verdict.state == "PASS" and judged.num_tokens >= 1_000
    assert any("breaks off in line" in note for note in judged.notes)


def test_a_cut_header_is_invalid(tmp_path: Path) -> None:
    path = tmp_path / "cut.jsonl"
    path.write_text('{"schema":"fairdr')
    assert run_audit(TraceSubject(path, allow_cut=True), LOOSE).exit_code == 4


def test_temperature_0_is_invalid(tmp_path: Path) -> None:
    lines = plain_lines()
    lines[0]["params"] = {"temperature": 0}
    report = run_audit(TraceSubject(write(tmp_path / "t.jsonl", lines)), LOOSE)
    assert report.exit_code == 4 and "greedy" in report.verdict.sentence


def test_a_file_that_is_not_there_is_no_subject(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        TraceSubject(tmp_path / "nothing.jsonl")


def test_a_resumed_audit_goes_on_in_the_file(good: Path, tmp_path: Path) -> None:
    state = tmp_path / "audit.state"

    def subject() -> TraceSubject:
        return TraceSubject(good, tokens_per_batch=256)

    whole = run_audit(subject(), LOOSE)
    first = run_audit(subject(), LOOSE, state_path=state, should_stop=lambda: True)
    assert first.verdict.state == "INCONCLUSIVE"
    second = run_audit(subject(), LOOSE, state_path=state)
    assert second.verdict == whole.verdict and second.families == whole.families
    assert second.log10_e == pytest.approx(whole.log10_e, abs=1e-9)


def test_a_file_that_changed_meanwhile_is_invalid(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", plain_lines())
    batch = next(TraceSubject(path, tokens_per_batch=4).batches())
    assert len(list(TraceSubject(path, tokens_per_batch=4).batches(batch.cursor))) == 2
    lines = documents(path)
    lines[1]["token"] = (lines[1]["token"] + 1) % 4
    write(path, lines)
    with pytest.raises(InvalidSubject, match="not what it was"):
        list(TraceSubject(path).batches(batch.cursor))


def test_numbers_beyond_the_schema_are_refused(tmp_path: Path) -> None:
    lines = plain_lines()
    path = write(tmp_path / "t.jsonl", lines)
    path.write_text(path.read_text() + json.dumps({"request": True}) + "\n")
    with pytest.raises(InvalidSubject, match="line 14 .* lacks"):
        list(TraceSubject(path).batches())


def documented(language: str) -> str:
    """The only block of a language on the page about the format."""
    page = Path(__file__).resolve().parents[2] / "docs" / "trace-format.md"
    text = page.read_text(encoding="utf-8")
    (block,) = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    return block


def test_the_documented_lines_are_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(documented("json"))
    (batch,) = TraceSubject(path).batches()
    assert batch.tokens.token_id.tolist() == [278, 1900, 310]
    assert batch.tokens.source.tolist() == [Source.ACCEPTED, Source.REPLACED, Source.PLAIN]


def test_the_documented_recorder_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Engine:
        def generate(self, prompt: list[int], seed: int) -> Any:
            law = np.array([0.5, 0.3, 0.2])
            step = {"id": seed, "p": law, "q": law[::-1], "slot": 0, "source": "replaced"}
            return [SimpleNamespace(**step)] * 4

    monkeypatch.chdir(tmp_path)
    names = {"vocab_size": 3, "prompts": [[1], [2, 1]], "engine": Engine()}
    exec(documented("py"), names)
    (batch,) = TraceSubject("run.jsonl.gz").batches()
    assert batch.tokens.token_id.tolist() == [0] * 4 + [1] * 4
    assert batch.tokens.previous[[0, 4]].tolist() == [[1, -1], [1, 2]]


@pytest.mark.parametrize("field", ["REQUIRED_FIELDS", "OPTIONAL_FIELDS"])
def test_every_field_is_documented(field: str) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "trace-format.md"
    text = page.read_text(encoding="utf-8")
    for name in (*getattr(trace_schema, field), *TraceHeader.__dataclass_fields__):
        assert f"`{name}`" in text or name == "extra", name
