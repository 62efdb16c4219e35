"""Our engine, recorded and read back, gets the verdict and the evidence of the direct audit."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairdraft import SamplingParams
from fairdraft.audit.session import run_audit
from fairdraft.audit.settings import AuditSettings, OraclePolicy
from fairdraft.audit.subjects.engine import EngineSubject
from fairdraft.audit.subjects.trace import TraceSubject
from tests.audit.traces import record
from tests.engine.toys import speculating, tiny_llama

NUM_REQUESTS, NUM_TOKENS = 8, 16
SETTINGS = AuditSettings(eps=0.1, alpha=1e-9, max_tokens=500, oracles=OraclePolicy.SKIP)


@pytest.mark.parametrize(
    ("vocab_size", "filters"), [(97, {}), (300, {"temperature": 0.8, "top_k": 20})]
)
def test_round_trip(vocab_size: int, filters: dict, tmp_path: Path) -> None:
    llm = speculating(tiny_llama(1, vocab_size=vocab_size), tiny_llama(2, vocab_size=vocab_size), 3)
    params = SamplingParams(ignore_eos=True, **filters)

    def subject() -> EngineSubject:
        return EngineSubject(llm, None, params, num_requests=NUM_REQUESTS, num_tokens=NUM_TOKENS)

    path = tmp_path / "engine.jsonl.gz"
    record(subject(), path, SETTINGS.max_tokens)
    size = next(subject().batches()).tokens
    direct = run_audit(subject(), SETTINGS)
    traced = run_audit(TraceSubject(path, tokens_per_batch=len(size)), SETTINGS)
    assert direct.num_tokens >= 500
    for name in ("verdict", "num_tokens", "log10_e", "curve", "families", "templates", "slots"):
        assert getattr(traced, name) == getattr(direct, name), name
    assert (traced.agreement, traced.heat) == (direct.agreement, direct.heat)
    assert traced.subject.sampler == "race" and traced.subject.rule == "token"
