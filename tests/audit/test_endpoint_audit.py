"""Whole audits of a local server: each way to misbehave, and the verdict that it gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairdraft.audit.openai import Patience
from fairdraft.audit.session import run_audit
from fairdraft.audit.settings import AuditSettings
from fairdraft.audit.subjects.endpoint import EndpointRequest, EndpointSubject
from tests.audit.fake_server import FakeServer, fake_server, vanish_after

QUICK = Patience(timeout=5.0, attempts=2, backoff=0.01, max_wait=1.0)
REQUEST = EndpointRequest(num_logprobs=20, max_tokens=64)
# by the planner, families of 8 cells pass at eps .05 from 6,600 tokens on
LOOSE = AuditSettings(eps=0.05, alpha=1e-9, max_tokens=20_000)


def audit(server: FakeServer, settings: AuditSettings = LOOSE, **options: Any) -> Any:
    audited = EndpointSubject(
        server.url, "fake", options.pop("request", REQUEST), patience=QUICK, **options
    )
    return run_audit(audited, settings)


def hotter(law: np.ndarray, power: float = 0.8) -> np.ndarray:
    law = law**power
    return law / law.sum(axis=1, keepdims=True)


def test_a_right_server_passes(server: FakeServer) -> None:
    report = audit(server)
    assert report.verdict.state == "PASS"
    assert report.subject.kind == "endpoint" and report.subject.scoring == "logprobs"
    assert any("without --draft no family" in note for note in report.notes)
    covered = {family.name for family in report.families if family.num_tokens}
    assert {"rank", "repeat", "agreement lag 0"} <= covered
    assert "q/p octile" not in covered


def test_a_hotter_server_fails(server: FakeServer) -> None:
    # the likeliest tokens lose about a tenth of their mass
    server.sampled = hotter(server.law)
    report = audit(server)
    assert report.verdict.state == "FAIL"
    assert report.num_tokens <= 8192


def test_a_server_that_gives_every_seed_the_same_noise_fails(server: FakeServer) -> None:
    complete = server.complete
    server.complete = lambda body: complete({**body, "seed": 0, "prompt": [1, 2]})  # type: ignore
    report = audit(server)
    assert report.verdict.state == "FAIL"
    assert report.verdict.diagnosis is not None and "agreement" in report.verdict.diagnosis


def test_a_server_that_is_down_is_invalid() -> None:
    with fake_server() as server:
        pass
    report = audit(server)
    assert (report.verdict.state, report.exit_code) == ("INVALID", 4)
    assert "cannot be audited" in report.verdict.sentence


def test_a_server_that_vanishes_is_inconclusive_and_its_tokens_count(server: FakeServer) -> None:
    server.trouble = vanish_after(60)
    report = audit(server, concurrency=4)
    assert (report.verdict.state, report.exit_code) == ("INCONCLUSIVE", 3)
    assert report.num_tokens == 32 * 64
    assert any("stopped answering" in note for note in report.notes)


def change_model(number: int, answer: dict[str, Any]) -> None:
    if number > 60:
        answer["model"] = "other"


def drop_logprobs(number: int, answer: dict[str, Any]) -> None:
    if number > 60:
        answer["choices"][0]["logprobs"] = None


@pytest.mark.parametrize("edit", [change_model, drop_logprobs])
def test_a_server_that_changes_is_invalid(server: FakeServer, edit: Any) -> None:
    server.edit = edit
    report = audit(server, concurrency=4)
    assert (report.verdict.state, report.exit_code) == ("INVALID", 4)
    assert report.num_tokens == 32 * 64


def test_speculation_that_never_happened_is_invalid(server: FakeServer) -> None:
    server.drafted = 0
    report = audit(server, speculative=True)
    assert report.verdict.state == "INVALID"
    assert "drafted nothing" in report.verdict.sentence


def test_other_sampling_is_invalid(server: FakeServer) -> None:
    for name, value in (("temperature", 0.7), ("temperature", 0.0), ("top_p", 0.5)):
        report = audit(server, request=EndpointRequest(sampling=((name, value),)))
        assert report.verdict.state == "INVALID"
    assert not server.requests


def test_a_stopped_audit_goes_on_to_the_same_report(server: FakeServer, tmp_path: Path) -> None:
    def audited() -> EndpointSubject:
        return EndpointSubject(server.url, "fake", REQUEST, patience=QUICK)

    whole = run_audit(audited(), LOOSE)
    path = tmp_path / "state.json"
    first = run_audit(audited(), LOOSE, state_path=path, should_stop=lambda: True)
    assert first.verdict.state == "INCONCLUSIVE"
    second = run_audit(audited(), LOOSE, state_path=path)
    assert second.num_tokens == whole.num_tokens
    assert second.families == whole.families
    assert second.log10_e == whole.log10_e
