"""`fairdraft audit endpoint` from the command line, against a local server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairdraft.audit.report import Report
from tests.audit.fake_server import FakeServer, fake_server, vanish_after
from tests.cli.conftest import cli  # noqa: F401

QUICK = ("--model", "fake", "--attempts", "1", "--eps", "0.05", "--alpha", "1e-9")


@pytest.fixture
def audit(cli: Any, server: FakeServer) -> Callable:  # noqa: F811
    return lambda *options: cli("audit", "endpoint", "--url", server.url, *QUICK, *options)


def reported(result: Any) -> Report:
    return Report.from_json(json.loads(result.out))


def test_a_right_server_passes(audit: Callable) -> None:
    result = audit("--json", "--concurrency", "8")
    assert result.code == 0
    report = reported(result)
    assert report.verdict.state == "PASS"
    assert report.settings["eps"] == 0.05
    assert report.subject.parameters["concurrency"] == 8
    assert "without --draft" in result.err


def test_a_wrong_server_fails_with_a_table(audit: Callable, server: FakeServer) -> None:
    law = server.law**0.7
    server.sampled = law / law.sum(axis=1, keepdims=True)
    result = audit()
    assert result.code == 1
    assert "FAIL" in result.out and "rank" in result.out


def test_a_server_that_is_down_is_invalid(cli: Any) -> None:  # noqa: F811
    with fake_server() as server:
        pass
    result = cli("audit", "endpoint", "--url", server.url, *QUICK)
    assert result.code == 4
    assert "the endpoint cannot be audited" in result.out


def test_a_server_that_was_down_may_be_tried_again(
    audit: Callable, server: FakeServer, tmp_path: Path
) -> None:
    kept = ("--json", "--state", str(tmp_path / "audit.state"))
    server.trouble = lambda number, handler: handler.answer(503, "starting") is None
    result = audit(*kept)
    assert (result.code, reported(result).num_tokens) == (4, 0)
    server.trouble = lambda number, handler: False
    assert audit(*kept).code == 0


def test_a_server_that_vanishes_keeps_its_state(
    audit: Callable, server: FakeServer, tmp_path: Path
) -> None:
    server.trouble = vanish_after(60)
    kept = ("--json", "--state", str(tmp_path / "audit.state"), "--concurrency", "4")
    result = audit(*kept)
    assert result.code == 3
    assert reported(result).num_tokens == 2048
    assert "stopped answering after 32 texts" in result.err
    server.trouble = lambda number, handler: False
    result = audit(*kept)
    assert result.code == 0
    assert "going on from" in result.err
    assert reported(result).num_tokens > 2048


def test_the_key_comes_from_the_environment_and_stays_there(
    audit: Callable, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRDRAFT_API_KEY", "secret-of-mine")
    result = audit("--json", "--max-tokens", "1")
    assert server.headers_seen[0]["authorization"] == "Bearer secret-of-mine"
    assert "secret-of-mine" not in result.out + result.err


def test_own_prompts(audit: Callable, server: FakeServer, tmp_path: Path) -> None:
    path = tmp_path / "prompts"
    path.write_text("first\n\nsecond\n")
    audit("--json", "--max-tokens", "1", "--file", str(path), "--lines")
    assert {body["prompt"] for body in server.requests} == {"first", "second"}


@pytest.mark.parametrize("options", [("--temperature", "0.7"), ("--top-p", "0.9")])
def test_other_sampling_is_invalid(audit: Callable, options: tuple[str, str]) -> None:
    result = audit("--json", *options)
    assert result.code == 4
    assert "temperature 1 without filters" in reported(result).verdict.sentence


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--sampler", "dice"), "--sampler dice is none of"),
        (("--control", "http://localhost:1/v1"), "add --target MODEL"),
        (("--temperature", "0", "--draft", "pocket-draft"), "nothing is rescored"),
        (("--temperature", "-1"), "is below 0"),
        (("--draft", "no/such"), "unknown draft model"),
        (("--url", "localhost:8000"), "is no http"),
        (("--prompt", ""), "--prompt is empty"),
        (("--seed", "-1"), "seed = -1"),
        (("--timeout", "0"), "timeout = 0"),
    ],
)
def test_unusable_options(audit: Callable, options: tuple[str, ...], message: str) -> None:
    result = audit(*options)
    assert result.code == 2
    assert message in result.err


def test_greedy_tokens_are_compared_with_the_likeliest(audit: Callable) -> None:
    result = audit("--json", "--temperature", "0")
    assert result.code == 0
    report = reported(result)
    assert report.verdict.state == "PASS" and report.num_tokens == 48 * 64
    assert report.settings["mode"] == "exact match"


def test_a_greedy_server_that_strays_fails(audit: Callable, server: FakeServer) -> None:
    sampled = server.law.copy()
    order = np.argsort(-sampled, axis=1)
    # the two likeliest ids change places after one id in ten
    for row in range(0, len(sampled), 10):
        first, second = order[row, :2]
        sampled[row, [first, second]] = sampled[row, [second, first]]
    server.sampled = sampled
    result = audit("--json", "--temperature", "0")
    assert result.code == 1
    assert "not the most likely ones, the first: token" in reported(result).verdict.sentence


def test_a_greedy_server_that_did_not_draft_is_invalid(audit: Callable, server: FakeServer) -> None:
    server.drafted = 3
    result = audit("--json", "--temperature", "0", "--speculative")
    assert result.code == 4
    assert "drafted nothing" in reported(result).verdict.sentence
