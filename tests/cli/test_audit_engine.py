"""`fairdraft audit engine` and `audit hf`, end to end on small checkpoints."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairdraft.audit.progress import Progress
from fairdraft.audit.report import Report
from fairdraft.cli.audit import watching
from fairdraft.stats.verdict import VerdictState
from tests.cli.conftest import Cli
from tests.engine.toys import tiny_llama

QUICK = ("--eps", "0.1", "--text-tokens", "12", "--threads", "1")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Folders of a target and a draft."""
    folders = []
    for name, seed, layers in (("target", 1, 2), ("draft", 2, 1)):
        folder = tmp_path_factory.mktemp(name)
        tiny_llama(seed, layers=layers).save_pretrained(folder)
        folders.append(str(folder))
    return folders[0], folders[1]


@pytest.fixture
def audit(cli: Cli, pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """`audit("engine", "--json")` audits the pair in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    target, draft = pair

    def run(command: str, *arguments: str) -> Any:
        options = QUICK if command == "engine" else QUICK[:4]
        return cli("audit", command, target, "--draft", draft, *options, *arguments)

    return run


def on_batch(monkeypatch: pytest.MonkeyPatch, act: Callable[[int], None]) -> None:
    """Calls `act` with the number of tokens after every batch."""
    real = watching.Watcher.__call__

    def watch(self: watching.Watcher, progress: Any) -> None:
        real(self, progress)
        if progress.tokens_per_second:
            act(progress.num_tokens)

    monkeypatch.setattr(watching.Watcher, "__call__", watch)


def test_a_right_engine_passes_with_a_sentence_a_table_and_exit_code_0(
    audit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "QUIET_SECONDS", 0.0)
    result = audit("engine", "--html", "page.html")
    assert result.code == 0, result.err
    assert "PASS" in result.out and "slot x q/p" in result.out
    assert "address trace:" in result.err and "no collision" in result.err
    assert "replay:" in result.err and "log10 E" in result.err and "tokens/s" in result.err
    page = Path("page.html").read_text(encoding="utf-8")
    assert "<svg" in page and "wrote page.html" in result.err


def test_json_is_the_report_and_nothing_else(audit: Any) -> None:
    result = audit("engine", "--json", "--max-tokens", "100")
    assert result.code == 3
    report = Report.from_json(json.loads(result.out))
    assert report.verdict.state == "INCONCLUSIVE" and report.verdict.needed_tokens
    assert report.command is not None and report.command.startswith("fairdraft audit engine ")
    assert report.subject.kind == "engine" and report.settings["max_tokens"] == 100


def test_a_state_file_goes_on_where_it_ended(audit: Any) -> None:
    first = audit("engine", "--json", "--max-tokens", "100", "--state", "a.state")
    assert first.code == 3
    done = Report.from_json(json.loads(first.out)).num_tokens
    second = audit("engine", "--json", "--state", "a.state")
    assert second.code == 0
    assert f"going on from a.state after {done:,} tokens" in second.err
    whole = audit("engine", "--json")
    assert json.loads(second.out)["families"] == json.loads(whole.out)["families"]


def test_a_state_of_another_audit_is_a_usage_error(audit: Any) -> None:
    audit("engine", "--max-tokens", "100", "--state", "a.state")
    result = audit("engine", "--temperature", "0.5", "--state", "a.state")
    assert result.code == 2
    assert "a.state belongs to another audit: subject.parameters.temperature" in result.err


def test_the_first_interrupt_finishes_the_batch_and_keeps_it(
    audit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_batch(monkeypatch, lambda count: signal.raise_signal(signal.SIGINT))
    result = audit("engine", "--json", "--state", "a.state")
    assert result.code == 130
    report = Report.from_json(json.loads(result.out))
    assert report.num_tokens == 768 and report.verdict.state == "INCONCLUSIVE"
    assert "stopping after this batch" in result.err
    assert "interrupted after 768 tokens; the same command goes on from a.state" in result.err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    monkeypatch.undo()


def test_the_second_stops_at_once_and_what_was_scored_is_saved(
    audit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def twice(count: int) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    on_batch(monkeypatch, twice)
    result = audit("engine")
    assert result.code == 130
    assert "with --state fairdraft-audit-engine.state goes on" in result.err
    assert Path("fairdraft-audit-engine.state").is_file()


def test_minutes_end_it(audit: Any) -> None:
    result = audit("engine", "--max-minutes", "0.000001", "--json")
    assert result.code == 3 and json.loads(result.out)["num_tokens"] == 768


def test_temperature_zero_compares_token_by_token(audit: Any) -> None:
    result = audit("engine", "--temperature", "0", "--json")
    report = Report.from_json(json.loads(result.out))
    assert result.code == 0 and report.verdict.state == "PASS", report.verdict
    assert "every greedy token is that of plain decoding" in report.verdict.sentence
    assert report.settings["mode"] == "exact match"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--eps", "2"), "eps = 2.0 must be above 0 and below 1"),
        (("--html", "missing/page.html"), "there is no folder"),
        (("--state", "."), "is a folder; name a file in it"),
        (("--method", "none"), "turns speculation off; leave out --draft"),
        (("--prompt", "words"), "has no tokenizer: pass token ids"),
    ],
)
def test_unusable_input_ends_with_2(audit: Any, arguments: tuple[str, ...], message: str) -> None:
    result = audit("engine", *arguments)
    assert result.code == 2
    assert message in " ".join(result.err.split())


def test_a_full_disk_is_said_and_changes_nothing(
    audit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno
    import os

    from fairdraft.audit import session

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(session, "save_state", full)
    result = audit("engine", "--state", "a.state", "--json")
    assert result.code == 0
    assert "could not be saved to a.state (No space left on device)" in result.err
    assert any("could not be saved" in note for note in json.loads(result.out)["notes"])


def test_transformers_is_audited_assisted_and_plain(audit: Any) -> None:
    assisted = audit("hf", "--max-tokens", "60", "--json")
    assert assisted.code == 3, assisted.err
    report = Report.from_json(json.loads(assisted.out))
    assert report.subject.is_speculative and "assisted by" in report.subject.name
    assert report.settings["eps"] == 0.1
    plain = audit("hf", "--draft", "none", "--json")
    assert plain.code == 0, plain.err
    assert "plain" in json.loads(plain.out)["subject"]["name"]


def test_transformers_without_a_tokenizer_takes_no_text(audit: Any) -> None:
    result = audit("hf", "--prompt", "words")
    assert result.code == 2 and "has no tokenizer" in result.err


def test_transformers_with_an_unknown_type_is_a_usage_error(audit: Any) -> None:
    result = audit("hf", "--dtype", "fp32")
    assert result.code == 2 and "dtype = 'fp32'; pass float32, bfloat16" in result.err


def test_a_model_that_is_not_there_is_a_usage_error(cli: Cli) -> None:
    for command in ("engine", "hf"):
        result = cli(
            "audit", command, "no-such-model", "--draft", "none" if command == "hf" else "x"
        )
        assert result.code == 2 and "no-such-model" in result.err


def test_progress_shows_how_far_it_is_and_what_is_found_so_far() -> None:
    progress = Progress(
        stage="audit",
        num_tokens=123_456,
        num_texts=1_929,
        seconds=60.0,
        tokens_per_second=2_000.0,
        log10_e=-0.42,
        threshold=3.0,
        largest="slot x q/p",
        deviation=0.0012,
        upper=0.0207,
        eps=0.01,
        planned_tokens=323_456,
        state=VerdictState.INCONCLUSIVE,
    )
    lines = watching.progress_lines(progress)
    assert [line.plain.removeprefix("━" * watching.BAR_WIDTH) for line in lines] == [
        " audit: 123,456 of about 323,456 tokens",
        "2,000 tokens/s, log10 E -0.4 of 3.0, about 1 min 40 s left",
        "slot x q/p: deviation 0.0012, at most 0.0207; eps 0.01",
    ]
    assert all(len(line) < 80 for line in lines)


def test_an_engine_that_drafts_trees_is_audited(audit: Any) -> None:
    given = '{"speculative_token_tree": [2, 1]}'
    result = audit("engine", "--json", "--max-tokens", "100", "--speculative-config", given)
    report = Report.from_json(json.loads(result.out))
    assert result.code == 3 and report.subject.rule == "tree"
    assert "trees of 4 drafts, 2 deep" in report.subject.name
    trace, replay, contexts = report.notes
    assert trace.endswith("no collision") and replay.endswith("no mismatch")
    assert contexts.startswith("contexts: logits of")


def test_a_lossy_rule_is_refused(audit: Any) -> None:
    given = '{"rule": "typical", "allow_lossy": true}'
    result = audit("engine", "--json", "--speculative-config", given)
    assert result.code == 2 and result.out == ""
    assert "rule 'typical' is lossy" in result.err and "under an exact rule" in result.err
