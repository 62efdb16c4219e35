"""`fairdraft generate` and `info` on the embedded pair, from the command line to the exit code."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import pytest
import torch

import fairdraft
from fairdraft import SamplingParams, pocket
from fairdraft.cli.generate import SAMPLING_OPTIONS
from fairdraft.cli.sampling import NAMES

SRC = Path(fairdraft.__file__).resolve().parent.parent
ANSI = re.compile(r"\x1b\[[0-9;]*m")

pytestmark = pytest.mark.skipif(
    not (pocket.path("target") / "config.json").is_file(), reason="no embedded models"
)


def loaded(text: str) -> dict:
    """The whole of stdout as one JSON document."""
    return json.loads(text)


def test_text_goes_to_stdout_and_all_else_to_stderr(cli) -> None:
    result = cli("generate", "--max-tokens", "12", "--seed", "1", "--ignore-eos")
    assert result.code == 0, result.err
    assert result.out.strip() and "\x1b" not in result.out + result.err
    for part in (
        "loading pocket (draft pocket-draft, K = 4)",
        "speculator: draft_model, 4 tokens a round",
        "repeats:",
        "loaded in",
        "tokens/s",
    ):
        assert part in result.err
    assert "12 tokens in" in result.err and "tokens/s" not in result.out


def test_loading_is_announced_before_anything_slow(cli, monkeypatch) -> None:
    from fairdraft.cli.session import Session

    monkeypatch.setattr(Session, "load", lambda job: (_ for _ in ()).throw(OSError(28, "full")))
    result = cli("generate")
    assert result.err.splitlines()[0].startswith("loading pocket")
    assert result.code == 2


def test_key_from_the_table_replays_the_text(cli) -> None:
    first = cli("generate", "--max-tokens", "24", "--ignore-eos", "-p", "One day")
    key = re.search(r"--noise-key ([0-9a-f]{16})", first.err)
    assert key is not None
    options = ("--max-tokens", "24", "--ignore-eos", "-p", "One day", "--noise-key", key.group(1))
    assert cli("generate", *options).out == first.out


def test_sampling_params_reach_the_text_and_the_document(cli) -> None:
    given = '{"min_tokens": 40, "no_repeat_ngram_size": 2, "logit_bias": {"5": -100}}'
    result = cli(
        "generate", "--json", "--max-tokens", "60", "--seed", "1", "--sampling-params", given
    )
    assert result.code == 0, result.err
    found = loaded(result.out)
    tokens = found["requests"][0]["outputs"][0]["token_ids"]
    pairs = list(zip(tokens, tokens[1:], strict=False))
    assert len(tokens) > 40 and 5 not in tokens and len(pairs) == len(set(pairs))
    assert found["sampling_params"]["logit_bias"] == {"5": -100}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("{", "is no JSON"),
        ("[1]", "is no JSON object"),
        ('{"min_token": 1}', "does not take 'min_token'; did you mean 'min_tokens'?"),
        ('{"temperature": 1}', "does not take 'temperature'; it takes presence_penalty"),
        ('{"logit_bias": {"a": 1}}', "a key that is no token id"),
        ('{"structured_outputs": "a"}', "is no object"),
        ('{"structured_outputs": {"regexp": "a"}}', "unexpected keyword argument 'regexp'"),
        ('{"presence_penalty": 3}', "presence_penalty=3: must be from -2 to 2"),
    ],
)
def test_bad_sampling_params_are_refused(cli, given: str, message: str) -> None:
    result = cli("generate", "--sampling-params", given)
    assert result.code == 2 and message in result.err.replace("\n", " ")


def test_every_parameter_is_an_option_or_goes_by_name() -> None:
    """The names are written twice, since the command line loads no engine to read them."""
    not_of_this_command = {"logprobs", "prompt_logprobs", "logits_processors"}
    not_of_one_request = {"num_speculative_tokens"}
    named = [*SAMPLING_OPTIONS, *NAMES, *not_of_this_command, *not_of_one_request]
    assert sorted(named) == sorted(field.name for field in fields(SamplingParams))


def test_json_is_one_document(cli) -> None:
    filters = shlex.split("--top-k 20 --top-p 0.9 --min-p 0.01 --seed -1 -k 2")
    prompts = ("-p", "One day", "-p", "The sun", "--n", "2", "--max-tokens", "6", "--ignore-eos")
    result = cli("generate", "--json", *prompts, *filters)
    assert result.code == 0, result.err
    found = loaded(result.out)
    assert [request["prompt"] for request in found["requests"]] == ["One day", "The sun"]
    samples = [sample for request in found["requests"] for sample in request["outputs"]]
    assert [len(sample["token_ids"]) for sample in samples] == [6] * 4
    assert found["speculative_config"]["num_speculative_tokens"] == 2
    assert found["summary"]["num_tokens"] == 24
    assert any(line.startswith("sampler:") for line in found["description"])
    assert found["sampling_params"]["top_k"] == 20 and found["comparison"] is None


def test_lines_of_a_pipe_are_a_batch(cli, piped_stdin) -> None:
    piped_stdin(b"One day\nThe sun\n")
    result = cli("generate", "--lines", "--max-tokens", "5", "--ignore-eos")
    assert result.code == 0, result.err
    assert "[1/2] One day" in result.out and "[2/2] The sun" in result.out
    assert "2 requests" in result.err


def test_plain_runs_beside_speculation(cli) -> None:
    result = cli(
        "generate", "--plain", "--json", "--max-tokens", "12", "--temperature", "0", "--ignore-eos"
    )
    assert result.code == 0, result.err
    comparison = loaded(result.out)["comparison"]
    assert comparison["same_greedy_text"] is True
    assert len(comparison["plain"]) == len(comparison["speculative"]) == 3


@pytest.mark.parametrize(
    ("options", "sources"),
    [
        (("--method", "none"), {"target"}),
        (("--method", "ngram"), {"target", "draft", "residual", "bonus"}),
        (
            ("--speculative-config", '{"draft_sample_method": "greedy"}'),
            {"draft", "residual", "bonus"},
        ),
    ],
)
def test_other_speculators(cli, options: tuple[str, ...], sources: set[str]) -> None:
    result = cli("generate", "--json", "--max-tokens", "16", "--ignore-eos", *options)
    assert result.code == 0, result.err
    sample = loaded(result.out)["requests"][0]["outputs"][0]
    assert len(sample["token_ids"]) == 16
    # the last rounds before a limit may have no room for drafts
    assert set(sample["token_sources"]) <= sources | {"target"}


def test_stop_string_ends_the_text(cli) -> None:
    result = cli("generate", "--json", "--stop", "e", "--max-tokens", "200", "--ignore-eos")
    sample = loaded(result.out)["requests"][0]["outputs"][0]
    assert sample["finish_reason"] == "stop" and sample["stop_reason"] == "e"
    assert "e" not in sample["text"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--temperature", "-1"), "temperature=-1.0"),
        (("--temperature", "nan"), "temperature=nan"),
        (("--top-p", "0"), "top_p=0.0"),
        (("--top-p", "1.5"), "top_p=1.5"),
        (("--min-p", "2"), "min_p=2.0"),
        (("--top-k", "-3"), "top_k=-3"),
        (("-k", "0"), "for no speculation use --method none"),
        (("--max-tokens", "0"), "max_tokens=0"),
        (("--n", "0"), "n=0"),
        (("--noise-key", "zz"), "zz"),
        (("--seed", "1", "--noise-key", "0123456789abcdef"), "leave one out"),
        (("--noise-key", "0123456789abcdef", "-p", "a", "-p", "b"), "2 prompts are given"),
        (("--prompt", ""), "--prompt is empty"),
        (("--prompt", "word " * 3000), "context holds"),
        (("no-such-model",), "no-such-model"),
        (("pockt",), "Did you mean 'pocket'?"),
        (("pocket-mtp",), "is a head, no target model"),
        (("--draft", "pocket-mpt"), "pocket-dspark. Did you mean 'pocket-mtp'?"),
        (("--draft", "no-such-draft"), "no-such-draft"),
        (("--method", "bogus"), "use one of draft_model, ngram, suffix, prediction, eagle3, mtp"),
        (("--method", "ngrm"), "did you mean 'ngram'?"),
        (("--method", "prediction"), "drafts from a text that comes with the request"),
        (("--speculative-config", '{"method": "bogus"}'), "custom, or 'auto'; for no speculation"),
        (("--speculative-config", '{"metod": "ngram"}'), "did you mean 'method'"),
        (("--method", "none", "--plain"), "--plain compares"),
        (("--impl", "bogus"), "bogus"),
        (("--dtype", "int3"), "int3"),
        (("--device", "nowhere"), "torch knows no such device; here there is cpu"),
    ],
)
def test_bad_input_is_named_and_exits_2(cli, arguments: tuple[str, ...], message: str) -> None:
    result = cli("generate", *arguments)
    assert (result.code, result.out) == (2, ""), result.err
    assert message in result.err and "Traceback" not in result.err


def test_directory_that_is_no_checkpoint_is_refused(cli, tmp_path: Path) -> None:
    result = cli("generate", str(tmp_path))
    assert result.code == 2 and "config.json" in result.err


def test_unknown_option_is_a_usage_error(cli) -> None:
    result = cli("generate", "--temprature", "1")
    assert result.code == 2 and result.out == ""


def test_failed_request_exits_1_and_the_others_finish(cli, monkeypatch) -> None:
    from fairdraft.engine import LLM

    stream = LLM.stream

    def breaking(self, prompts, params):
        for event in stream(self, prompts, params):
            if event.finished and event.prompt == "The sun":
                event.error = "the target's logits hold NaN"
            yield event

    monkeypatch.setattr(LLM, "stream", breaking)
    result = cli("generate", "-p", "One day", "-p", "The sun", "--max-tokens", "4")
    assert result.code == 1
    assert "prompt 2 of 2 failed: the target's logits hold NaN" in result.err
    assert "[1/2] One day" in result.out and "1 failed" in result.err


def test_fault_of_ours_exits_70(cli, monkeypatch) -> None:
    from fairdraft.engine import LLM

    def broken(self, prompts, params):
        raise AssertionError("rows disagree")

    monkeypatch.setattr(LLM, "stream", broken)
    result = cli("generate", "--max-tokens", "4")
    assert result.code == 70 and "rows disagree" in result.err and "please report" in result.err


def start_on_terminal(*arguments: str) -> tuple[subprocess.Popen[bytes], int]:
    """Starts the command with a terminal as stdout and stderr; returns it and our end."""
    ours, theirs = pty.openpty()
    inherited = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS")}
    process = subprocess.Popen(
        [sys.executable, "-m", "fairdraft", "generate", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**inherited, "PYTHONPATH": str(SRC), "TERM": "xterm-256color"},
    )
    os.close(theirs)
    return process, ours


def read_until(descriptor: int, wanted: bytes | None, seconds: float = 120.0) -> bytes:
    """Reads a terminal until it shows something, or, without it, until it closes."""
    seen, end = b"", time.monotonic() + seconds
    while time.monotonic() < end and (wanted is None or wanted not in seen):
        try:
            chunk = os.read(descriptor, 4096)
        except OSError:
            break
        if not chunk:
            break
        seen += chunk
    return seen


def test_interrupt_keeps_the_text_and_exits_130() -> None:
    """On a terminal, so that the colors are seen too."""
    process, ours = start_on_terminal("--max-tokens", "900", "--ignore-eos", "--seed", "3")
    seen = read_until(ours, b"\x1b[36m")
    seen += read_until(ours, b"\x1b[32m")
    process.send_signal(signal.SIGINT)
    seen += read_until(ours, None)
    os.close(ours)
    assert process.wait(60) == 130
    text = ANSI.sub("", seen.decode())
    assert "Once upon a time" in text and "tokens/s" in text and "interrupted" in text
    assert "Traceback" not in text


class Terminal(io.StringIO):
    """Memory that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("is_asked", [True, False])
def test_no_color_is_honored(is_asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if is_asked:
        monkeypatch.setenv("NO_COLOR", "1")
    assert run_on(screen, monkeypatch, "generate", "--max-tokens", "8") == 0
    seen = screen.getvalue()
    assert (re.search(r"\x1b\[[0-9;]*3[0-7]m", seen) is None) is is_asked
    assert "Once upon a time" in ANSI.sub("", seen)


def test_narrow_encoding_loses_a_letter_and_not_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    narrow = io.TextIOWrapper(written, encoding="ascii", write_through=True)
    options = ("--max-tokens", "2", "-p", "\u20ac", "-p", "b")
    assert run_on(narrow, monkeypatch, "generate", *options) == 0
    assert b"[1/2] ?" in written.getvalue()


def run_on(stream: io.TextIOBase, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Runs the command with both outputs on a stream; returns the exit code."""
    from fairdraft.cli import main

    monkeypatch.setattr(sys, "argv", ["fairdraft", *arguments])
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    with pytest.raises(SystemExit) as ending:
        main()
    assert isinstance(ending.value.code, int | None)
    return ending.value.code or 0


def test_info_says_what_will_run_and_why(cli) -> None:
    result = cli("info")
    assert result.code == 0, result.err
    for part in ("torch", "cpu", "reference", "picks", "pocket-draft", "K = 4"):
        assert part in result.out


def test_info_knows_a_torch_for_amd(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    found = loaded(cli("info", "--json").out)["devices"]
    assert [entry["reason"] for entry in found[1:]] == ["torch is built for GPUs and finds none"]


def test_info_as_json(cli) -> None:
    found = loaded(cli("info", "--json").out)
    assert set(found) == {
        *("versions", "devices", "backends", "models", "speculators", "what runs")
    }
    assert found["speculators"][-1]["name"] == "auto"
    assert all({"name", "ready", "reason"} == set(entry) for entry in found["models"])


def test_version(cli) -> None:
    assert cli("--version").out == f"fairdraft {fairdraft.__version__}\n"


def test_auto_says_what_it_chose_and_how_to_pin_it(cli) -> None:
    config = '{"budget_seconds": 0.05, "num_speculative_tokens": 2}'
    options = ("--method", "auto", "--speculative-config", config, "--max-tokens", "4", "--json")
    result = cli("generate", *options, "-p", "The fox", "--seed", "1")
    assert result.code == 0, result.err
    found = loaded(result.out)
    assert {e["name"] for e in found["choice"]["estimates"]} >= {"plain", "draft_model", "ngram"}
    assert "pinned" in found["choice"]
    assert any(line.startswith("chosen: ") for line in found["description"])


def test_a_lossy_rule_is_named_in_the_table_and_the_document(cli) -> None:
    given = '{"rule": "typical", "allow_lossy": true}'
    options = ("generate", "--max-tokens", "8", "--seed", "1", "--speculative-config", given)
    result = cli(*options)
    assert result.code == 0, result.err
    assert "rule: typical (lossy)" in result.err
    assert re.search(r"lossy +│ +typical +│ +the text does not follow", result.err)
    found = loaded(cli(*options, "--json").out)
    assert found["summary"]["lossy"] == "typical"
    assert {request["lossy"] for request in found["requests"]} == {"typical"}
    assert found["requests"][0]["metrics"]["lossy"] == "typical"


def test_a_lossy_rule_has_to_be_allowed(cli) -> None:
    result = cli("generate", "--speculative-config", '{"rule": "typical"}')
    assert result.code == 2 and "Add 'allow_lossy': True" in result.err
