"""Local models beside an endpoint: their laws, and their disagreement with the server.

Axes: N tokens, V ids.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fairdraft.audit.rescoring import score_texts
from fairdraft.audit.session import run_audit
from fairdraft.audit.settings import AuditSettings
from fairdraft.audit.subject import InvalidSubject
from fairdraft.audit.subjects.endpoint import EndpointRequest, EndpointSubject
from fairdraft.models import load_model
from fairdraft.stats.families import FAMILIES
from tests.audit.fake_server import VOCAB, FakeServer, markov_table

REQUEST = EndpointRequest(num_logprobs=6, max_tokens=12)


class TableModel:
    """Stands in for a causal LM whose next id depends on the last one only."""

    def __init__(self, law: np.ndarray, name: str = "table") -> None:
        self.law = torch.tensor(law).log()
        self.name = name
        self.vocab_size = self.padded_vocab_size = VOCAB

    def tokenizer(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [3, len(text) % VOCAB]}

    def new_cache(self, num_rows: int, length: int) -> None:
        return None

    def forward(self, ids: Any, start: Any, cache: Any, *, num_tokens: Any) -> Any:
        return self.law[ids]


def first_tokens(server: FakeServer, **models: Any) -> Any:
    audited = EndpointSubject(
        server.url, "fake", REQUEST, concurrency=4, texts_per_batch=4, **models
    )
    stream = audited.batches()
    try:
        return next(stream).tokens
    finally:
        stream.close()  # type: ignore[attr-defined]


def test_a_whole_audit_with_a_draft_covers_its_families(server: FakeServer) -> None:
    models: dict[str, Any] = {"draft": TableModel(markov_table(seed=5))}
    audited = EndpointSubject(server.url, "fake", REQUEST, texts_per_batch=32, **models)
    report = run_audit(audited, AuditSettings(eps=0.1, alpha=1e-3, max_tokens=4096))
    assert report.verdict.state in ("PASS", "INCONCLUSIVE"), report.verdict.sentence
    covered = {family.name for family in report.families if family.num_tokens}
    assert "q/p octile" in covered and "slot x q/p" not in covered


def test_a_draft_opens_the_families_of_its_law(server: FakeServer) -> None:
    draft = markov_table(seed=8)
    tokens = first_tokens(server, draft=TableModel(draft))
    assert tokens.num_columns == 7
    law = draft[tokens.previous[:, 0]]
    listed = np.take_along_axis(law, tokens.ids[:, :-1], axis=1)
    np.testing.assert_allclose(tokens.draft[:, :-1], listed, rtol=1e-4)
    np.testing.assert_allclose(tokens.draft.sum(axis=1), 1)
    assert (tokens.previous[0] == [server.requests[0]["prompt"][-1], 3]).all()
    octile = next(family for family in FAMILIES if family.name == "q/p octile")
    cells = octile.cells(tokens)
    assert cells is not None and len(cells.rows) == len(tokens)


def test_a_target_replaces_the_logprobs(server: FakeServer) -> None:
    models = {"target": TableModel(server.law), "draft": TableModel(markov_table(8))}
    tokens = first_tokens(server, **models)
    assert tokens.ids is None and tokens.num_columns == VOCAB
    np.testing.assert_allclose(tokens.target, server.law[tokens.previous[:, 0]], rtol=1e-5)
    info = EndpointSubject(server.url, **models).info  # type: ignore[arg-type]
    assert (info.scoring, info.default_eps0) == ("rescored", 0.005)
    assert info.parameters["rescored_target"] == "table"


def test_another_target_is_refused(server: FakeServer) -> None:
    with pytest.raises(InvalidSubject, match="another model, another tokenizer"):
        first_tokens(server, target=TableModel(markov_table(9)))


def test_token_strings_cannot_be_rescored(server: FakeServer) -> None:
    server.is_plain_openai = True
    with pytest.raises(InvalidSubject, match="the server reports strings only"):
        first_tokens(server, draft=TableModel(server.law))


def test_a_prompt_that_the_server_changes_is_refused(server: FakeServer) -> None:
    def add_token(number: int, answer: dict[str, Any]) -> None:
        answer["choices"][0]["prompt_token_ids"].insert(0, 1)

    server.edit = add_token
    with pytest.raises(InvalidSubject, match="add no token to a prompt"):
        first_tokens(server, draft=TableModel(server.law))


def test_models_of_two_vocabularies_are_refused(server: FakeServer) -> None:
    other = TableModel(server.law)
    other.vocab_size = 39
    with pytest.raises(ValueError, match="one vocabulary"):
        first_tokens(server, target=TableModel(server.law), draft=other)


def test_texts_are_scored_as_if_alone() -> None:
    model = load_model("pocket-draft")
    prompts = [[5, 6, 7], [9], [11, 12]]
    outputs = [[20, 21], [30, 31, 32, 33, 34], [40]]
    together = score_texts(model, prompts, outputs)
    assert together.shape == (8, model.padded_vocab_size)
    np.testing.assert_allclose(together.sum(axis=1), 1, atol=1e-5)
    alone = [score_texts(model, [p], [o]) for p, o in zip(prompts, outputs, strict=True)]
    np.testing.assert_allclose(together, np.concatenate(alone), atol=1e-5)
    ids = torch.tensor([[9, 30, 31]])
    logits = model.forward(ids, torch.tensor([0]), model.new_cache())
    np.testing.assert_allclose(together[2:5], torch.softmax(logits[0], -1).numpy(), atol=1e-5)


def test_an_id_that_the_model_does_not_have_is_refused() -> None:
    model = load_model("pocket-draft")
    with pytest.raises(ValueError, match="token id 5000 is unknown"):
        score_texts(model, [[5]], [[5000, 1]])
