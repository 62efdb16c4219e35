"""Rounds of heads on the device give the drafts and the tokens of eager rounds."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fairdraft import LLM, RequestOutput, SamplingParams
from fairdraft.engine.graph_runner import GraphRunner
from fairdraft.speculators import DeviceFeatures, DeviceState, HeadSpeculator
from fairdraft.speculators.heads import KeptOutputs
from tests.engine.device_rounds import WaitsForTheDevice, guard_rounds
from tests.engine.toys import tiny_llama
from tests.speculators.small_heads import KINDS, save_small, with_head

pytestmark = pytest.mark.skipif(not find_spec("triton"), reason="no Triton here")

PROMPTS = [[1, 2, 3], [12], [3, 1, 3, 1, 3, 1, 3]]
# hot, so that many drafts stand
PARAMS = [
    SamplingParams(seed=5, max_tokens=9, temperature=2.0),
    SamplingParams(seed=6, max_tokens=12, temperature=0.0),
    SamplingParams(seed=7, max_tokens=10, temperature=3.0, num_speculative_tokens=1),
]


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return guard_rounds(monkeypatch)


def decided(outputs: list[RequestOutput]) -> list[Any]:
    """Tokens, drafts and drafts that stood of each request."""
    found = []
    for output in outputs:
        counts = output.metrics
        assert counts is not None
        drafts = counts.drafted_per_position, counts.accepted_per_position
        found.append((output.outputs[0].token_ids, *drafts, output.error))
    return found


def both(
    target: Any, folder: Path, num_drafts: int = 3, params: Any = PARAMS, **options: Any
) -> tuple[list[Any], list[Any]]:
    """What rounds on the device decided, and what eager ones did."""
    made = []
    for extra in ({"max_num_seqs": 2}, {"enforce_eager": True}):
        llm = with_head(target, folder, num_drafts, **options, **extra)
        assert isinstance(llm.engine._runner, GraphRunner) == ("enforce_eager" not in extra)
        made.append(decided(llm.generate(PROMPTS, params)))
    return made[0], made[1]


@pytest.mark.parametrize("kind", list(KINDS))
def test_tokens_are_those_of_eager_rounds(kind: str, rounds: list[int], tmp_path: Path) -> None:
    """Ragged prompts, one of a single token; a greedy row; a row with a K of its own."""
    target = tiny_llama(0)
    folder = save_small(target, tmp_path, **KINDS[kind])
    got, expected = both(target, folder)
    assert got == expected
    assert max(rounds) == 2 and sum(map(sum, (stood for _, _, stood, _ in got))) > 0


def test_slots_before_a_text_go_where_there_is_memory(rounds: list[int], tmp_path: Path) -> None:
    """Modules begin short texts at negative slots, in a cache far shorter than the context."""
    target = tiny_llama(0, max_model_len=640)
    kind: dict[str, Any] = KINDS["mtp, modules"] | {"max_position_embeddings": 640}
    folder = save_small(target, tmp_path, **kind)
    got, expected = both(target, folder)
    assert got == expected and max(rounds) == 2


@pytest.mark.parametrize("kind", list(KINDS))
def test_tokens_are_those_of_eager_rounds_up_to_the_context_limits(
    kind: str, rounds: list[int], tmp_path: Path
) -> None:
    """The head's context ends before the target's, within a round; some ids it cannot draft."""
    target = tiny_llama(0, max_model_len=24)
    changes: dict[str, Any] = {"max_position_embeddings": 17, "ids": list(range(0, 90, 2))}
    folder = save_small(target, tmp_path, **KINDS[kind], **changes)
    got, expected = both(
        target, folder, params=SamplingParams(max_tokens=None, seed=8, temperature=3.0)
    )
    assert got == expected and rounds
    assert [len(p) + len(ids) for p, (ids, *_) in zip(PROMPTS, got, strict=True)] == [24] * 3


def test_a_first_round_of_one_token_finds_nothing_to_read(
    rounds: list[int], tmp_path: Path
) -> None:
    """The target has kept no keys yet that a head could attend to."""
    target = tiny_llama(0)
    folder = save_small(target, tmp_path, **KINDS["shared_kv_mtp"])
    params, texts = SamplingParams(seed=1, max_tokens=8, temperature=2.0), []
    for enforce_eager in (True, False):
        llm = with_head(target, folder, enforce_eager=enforce_eager)
        texts.append(decided(llm.generate([[12]], params)))
    assert texts[0] == texts[1] and rounds


@pytest.mark.parametrize(
    "options",
    [
        {"rejection_sample_method": "common_noise"},
        {"rejection_sample_method": "block"},
        {"draft_sample_method": "greedy"},
    ],
    ids=lambda options: next(iter(options.values())),
)
def test_every_rule_and_kind_of_drafts_runs(
    options: dict[str, Any], rounds: list[int], tmp_path: Path
) -> None:
    target = tiny_llama(0)
    got, expected = both(target, save_small(target, tmp_path), **options)
    assert got == expected and rounds


def test_rounds_of_a_trained_head_whose_k_changes(rounds: list[int]) -> None:
    """Graphs of several depths take turns, and most drafts stand."""
    config = {"model": "pocket-mtp", "adaptive": True, "adaptive_cost_ratio": 0.2}
    prompts = ["Once upon a time", "The old king"]
    params = [
        SamplingParams(temperature=1.0, max_tokens=24, seed=3),
        SamplingParams(temperature=0.0, max_tokens=24),
    ]
    made = []
    for enforce_eager in (True, False):
        config["num_speculative_tokens"] = 4
        llm = LLM("pocket", speculative_config=config, enforce_eager=enforce_eager)
        made.append(decided(llm.generate(prompts, params)))
    runner: Any = llm.engine._runner
    assert made[0] == made[1] and len({depth for _, depth, _, _ in runner._graphs}) > 1
    assert "rounds: replayed from CUDA graphs, drafts included" in llm.describe()


def test_rounds_with_a_stop_run_as_written(rounds: list[int], tmp_path: Path) -> None:
    """A head sees the states of every round, also of those in which no draft was sure enough."""
    target = tiny_llama(0)
    folder = save_small(target, tmp_path, **KINDS["dspark"], has_confidence=True)
    got, expected = both(target, folder, confidence_threshold=0.9)
    assert got == expected and not rounds
    llm = with_head(target, folder, confidence_threshold=0.9)
    assert "rounds: run as written" in llm.describe()


def test_eager_rounds_and_those_on_the_device_take_turns(rounds: list[int], tmp_path: Path) -> None:
    """A filtered row makes rounds eager while it is there; a preempted one goes on later."""
    target = tiny_llama(0)
    folder = save_small(target, tmp_path)
    params = [PARAMS[0], SamplingParams(seed=9, max_tokens=3, top_k=20), PARAMS[2]]
    made = []
    for enforce_eager in (True, False):
        llm = with_head(target, folder, 3, max_num_seqs=2, enforce_eager=enforce_eager)
        step, count = llm.engine.step, 0

        def step_and_preempt(llm: LLM = llm, step: Any = step) -> Any:
            nonlocal count
            count += 1
            if count == 4:
                llm.engine.preempt(llm.engine.rows.sequences[0].request.request_id)
            return step()

        llm.engine.step = step_and_preempt
        made.append(decided(llm.generate(PROMPTS, params)))
    assert made[0] == made[1] and rounds


def test_a_graph_ends_when_what_it_reads_moves(rounds: list[int], tmp_path: Path) -> None:
    """More rows and longer texts than at first: caches, outputs and tables grow."""
    target = tiny_llama(0, max_model_len=640)
    llm = with_head(target, save_small(target, tmp_path), 2, max_num_seqs=8)
    runner: Any = llm.engine._runner
    llm.generate([[1, 2]], SamplingParams(seed=1, max_tokens=4))
    [graph] = runner._graphs.values()
    places = addresses(llm)
    llm.generate([[3, 2]], SamplingParams(seed=1, max_tokens=4))
    assert graph.is_valid and addresses(llm) == places
    for prompts in ([[1, 2]] * 5, [[1] * 300]):
        runner._graphs = {(): graph}
        graph._place = graph._memory()
        llm.generate(prompts, SamplingParams(seed=1, max_tokens=2))
        assert addresses(llm) != places and not graph.is_valid
        places = addresses(llm)


def addresses(llm: LLM) -> list[int]:
    """Where a round of a head finds what it reads."""
    head: Any = llm.speculator
    stores = [head.head.cache._keys, head.head.cache._values]
    found = [tensor for store in stores for tensor in store.values()]
    found += [*head.head._angles, *(kept._outputs for kept in head._kept)]
    return [tensor.data_ptr() for tensor in found]


def test_a_broken_row_fails_alone(rounds: list[int], tmp_path: Path) -> None:
    target = tiny_llama(0)
    llm = with_head(target, save_small(target, tmp_path), 2)
    speculator: Any = llm.speculator
    weight = target.get_input_embeddings().weight.detach().clone()
    weight[12] = torch.nan
    speculator.head.head.embed_tokens = nn.Embedding.from_pretrained(weight)
    outputs = llm.generate([[1, 2, 3], [4, 12]], SamplingParams(seed=1, max_tokens=4))
    assert rounds and [output.error is not None for output in outputs] == [False, True]
    assert "draft 1 of the round" in str(outputs[1].error)


def faulty_start(self: Any, state: DeviceState) -> None:
    """Goes on from the output at the last decided token but two."""
    hidden = self._kept[0].at_on_device(state.num_decided - 3)
    for step in range(1, state.depth + 1):
        state.draw(self._law(self.head.logits(hidden)), step)


def forgets(self: Any, features: DeviceFeatures) -> None:
    """Takes in nothing of what was decided."""


def waits(self: Any, features: DeviceFeatures) -> None:
    features.num_tokens.max().item()


def overwrites(self: KeptOutputs, outputs: Tensor, start: Tensor) -> None:
    """Loses what the slot before the block gave, which a round that is redone needs."""
    self._outputs[: len(outputs)] = outputs[:, -1:]


@pytest.mark.parametrize(
    ("kind", "holder", "name", "fault"),
    [
        ("eagle3", HeadSpeculator, "observe_on_device", forgets),
        ("eagle3", HeadSpeculator, "draft_on_device", faulty_start),
        ("eagle3", KeptOutputs, "put_on_device", overwrites),
        ("dspark", HeadSpeculator, "observe_on_device", forgets),
    ],
)
def test_a_planted_fault_changes_what_stands(
    kind: str,
    holder: Any,
    name: str,
    fault: Any,
    rounds: list[int],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    target = tiny_llama(0)
    folder = save_small(target, tmp_path, **KINDS[kind])
    if holder is HeadSpeculator:
        holder = type(with_head(target, folder).speculator)
    monkeypatch.setattr(holder, name, fault)
    got, expected = both(target, folder, params=PARAMS[0])
    assert got != expected


def test_a_round_that_waits_is_refused(
    rounds: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target = tiny_llama(0)
    llm = with_head(target, save_small(target, tmp_path))
    monkeypatch.setattr(type(llm.speculator), "observe_on_device", waits)
    with pytest.raises(WaitsForTheDevice):
        llm.generate(PROMPTS[:1], PARAMS[0])
