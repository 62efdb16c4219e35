"""Rounds of heads on a CUDA device: replayed from graphs they give the tokens of eager ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fairdraft import LLM, RequestOutput, SamplingParams
from fairdraft.engine.round_graph import RoundGraph
from tests.engine.test_gpu import PARAMS, PROMPTS, token_ids
from tests.engine.toys import tiny_llama
from tests.speculators.small_heads import KINDS, save_small, with_head

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
POCKET = ["pocket-mtp", "pocket-dspark", "pocket-dflash"]
SHORT = [[1, 2, 3], [12], [3, 1, 3, 1, 3, 1, 3]]


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each round that came from a graph."""
    seen: list[int] = []
    run = RoundGraph.run

    def counted(self: RoundGraph, fields: Any) -> Any:
        decided = run(self, fields)
        assert self.is_captured
        seen.append(fields.shape[1])
        return decided

    monkeypatch.setattr(RoundGraph, "run", counted)
    return seen


def stood(outputs: list[RequestOutput]) -> list[list[int]]:
    """Drafts of each request that stood, by their place in the round."""
    return [list(o.metrics.accepted_per_position) for o in outputs if o.metrics]


@pytest.mark.parametrize("model", POCKET)
def test_replayed_rounds_of_trained_heads(model: str, replays: list[int]) -> None:
    """Ragged rows, hot, greedy and with a K of its own; more rows than fit at once."""
    config = {"model": model, "num_speculative_tokens": 4}
    made = []
    for enforce_eager in (True, False):
        options: dict[str, Any] = {"max_num_seqs": 2, "enforce_eager": enforce_eager}
        llm = LLM("pocket", speculative_config=config, device="cuda", **options)
        outputs = llm.generate(PROMPTS, PARAMS)
        made.append((token_ids(outputs), stood(outputs)))
        assert bool(replays) is not enforce_eager
    assert made[0] == made[1]
    assert set(replays) == {1, 2} and sum(map(sum, made[0][1])) > 20


@pytest.mark.parametrize(
    "changes", [{}, {"draft_sample_method": "greedy"}, "common_noise", "block"]
)
@pytest.mark.parametrize("kind", list(KINDS))
def test_replayed_rounds_go_up_to_the_context_limits(
    kind: str, changes: Any, replays: list[int], tmp_path: Path
) -> None:
    """The head's context ends before the target's; some ids it cannot draft; K of a row's own."""
    options = {"rejection_sample_method": changes} if isinstance(changes, str) else changes
    target = tiny_llama(0, max_model_len=64)
    limits: dict[str, Any] = {"max_position_embeddings": 41, "ids": list(range(0, 90, 2))}
    folder = save_small(target, tmp_path, **KINDS[kind] | limits)
    params = [
        SamplingParams(max_tokens=None, seed=8, temperature=2.0),
        SamplingParams(max_tokens=None, seed=9, temperature=0.0),
        SamplingParams(max_tokens=None, seed=3, temperature=3.0, num_speculative_tokens=2),
    ]
    made = []
    for enforce_eager in (True, False):
        llm = with_head(
            target.cuda(), folder, 3, device="cuda", enforce_eager=enforce_eager, **options
        )
        outputs = llm.generate(SHORT, params)
        made.append((token_ids(outputs), stood(outputs)))
    assert made[0] == made[1] and replays
    lengths = [len(p) + len(t) for p, t in zip(SHORT, made[0][0], strict=True)]
    assert lengths == [64] * 3


@pytest.mark.parametrize("kind", list(KINDS))
def test_graphs_end_when_caches_grow(kind: str, replays: list[int], tmp_path: Path) -> None:
    """More rows and longer texts than at first, then few again; filtered rows run in between."""
    target = tiny_llama(0, max_model_len=640).cuda()
    folder = save_small(target, tmp_path, **KINDS[kind])
    batches = [[[1, 2]], [[1, 2, row] for row in range(9)], [[1] * 300], [[5, 6, 7], [8]]]
    texts = []
    for enforce_eager in (True, False):
        llm = with_head(target, folder, 3, device="cuda", enforce_eager=enforce_eager)
        made = []
        for batch in batches:
            params = [SamplingParams(seed=row, max_tokens=12) for row in range(len(batch))]
            params[0] = SamplingParams(seed=0, max_tokens=4, top_k=20)
            made += token_ids(llm.generate(batch, params))
        texts.append(made)
    assert texts[0] == texts[1] and max(replays) > 4
