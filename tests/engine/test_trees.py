"""Trees of drafts through the engine: greedy text, keys, caches, limits, and what is refused."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairdraft import LLM, SamplingParams
from fairdraft.engine.config import NUM_DRAFTS, SpeculativeConfig
from fairdraft.noise import Stream, Trace
from fairdraft.speculators import read_token_tree
from fairdraft.speculators.tree import DraftTree
from tests.engine.test_greedy_equality import GREEDY, PROMPTS, half_wrong
from tests.engine.toys import ids, tiny_llama
from tests.speculators.small_heads import law_from_scratch, save_small

TREES = {"by depth": [3, 2, 1], "paths": "[(0,), (1,), (2,), (0, 0), (0, 1), (2, 0), (0, 0, 0)]"}
GREEDY_FEW = SamplingParams(temperature=0.0, max_tokens=5)
SAMPLED = [SamplingParams(seed=i, max_tokens=20, temperature=0.6 + 0.3 * i) for i in range(4)]


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny_llama(0)


@pytest.fixture(scope="module")
def plain(target: Any) -> list[list[int]]:
    return ids(LLM(target).generate(PROMPTS, GREEDY))


@pytest.fixture(scope="module")
def head(target: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small(target, tmp_path_factory.mktemp("head"))


def with_tree(target: Any, draft: Any, tree: Any = (3, 2, 1), **options: Any) -> LLM:
    """An LLM that drafts trees with a model, the folder of a head, or by suffixes."""
    config: dict[str, Any] = {"speculative_token_tree": tree}
    config |= {"method": "suffix"} if draft == "suffix" else {"model": draft}
    for key in ("draft_sample_method",):
        if key in options:
            config[key] = options.pop(key)
    return LLM(target, speculative_config=config, **options)


def accepted(outputs: list[Any]) -> int:
    return sum(output.metrics.num_accepted_tokens for output in outputs)


@pytest.mark.parametrize(
    ("kind", "drafts", "tree"),
    [
        ("perfect", "probabilistic", "by depth"),
        ("half", "probabilistic", "by depth"),
        ("half", "greedy", "paths"),
        ("head", "probabilistic", "paths"),
        ("head", "greedy", "by depth"),
        ("suffix", "greedy", "by depth"),
        ("suffix", "greedy", "paths"),
    ],
)
def test_trees_leave_greedy_text_alone(
    target: Any, plain: list[list[int]], head: Path, kind: str, drafts: str, tree: str
) -> None:
    """In batches of two, so that rows are moved; a perfect draft's first path always stands."""
    draft = {"perfect": target, "half": half_wrong(target), "head": head}.get(kind, "suffix")
    options = {} if kind == "suffix" else {"draft_sample_method": drafts}
    llm = with_tree(target, draft, TREES[tree], max_num_seqs=2, **options)
    outputs = llm.generate(PROMPTS, GREEDY)
    assert ids(outputs) == plain
    if kind == "perfect":
        assert all(o.metrics and o.metrics.acceptance_rate == 1.0 for o in outputs)
    else:
        assert accepted(outputs) > (0 if kind == "head" else 3)


def test_greedy_text_is_plain_up_to_the_context_limit_and_past_the_draft_s(target: Any) -> None:
    """Trees shrink with the slots that are left; a draft whose context ends drafts no more."""
    params, prompts = SamplingParams(temperature=0, max_tokens=None), [[*range(90)], [*range(60)]]
    plain = ids(LLM(target).generate(prompts, params))
    assert [len(text) for text in plain] == [38, 68]
    assert ids(with_tree(target, half_wrong(target)).generate(prompts, params)) == plain
    short = tiny_llama(0)
    short.config.max_position_embeddings = 110
    outputs = with_tree(target, short).generate(prompts, params)
    assert ids(outputs) == plain
    assert outputs[0].metrics is not None and 18 < outputs[0].metrics.rounds < 38


def preempt_often(llm: LLM) -> None:
    """Drops the caches of the oldest request after every third step."""
    step, calls = llm.engine.step, iter(range(1_000))

    def step_and_preempt() -> Any:
        ended = step()
        if next(calls) % 3 == 1:
            for name in list(llm.engine.requests)[:1]:
                llm.engine.preempt(name)
        return ended

    llm.engine.step = step_and_preempt


@pytest.mark.parametrize("kind", ["half", "head", "suffix"])
def test_a_key_gives_one_text_in_any_batch_and_after_preemptions(
    target: Any, head: Path, kind: str
) -> None:
    draft = {"half": half_wrong(target), "head": head}.get(kind, "suffix")
    llm = with_tree(target, draft, max_num_seqs=4)
    expected = ids(llm.generate(PROMPTS, SAMPLED))
    alone = [ids(llm.generate(p, q))[0] for p, q in zip(PROMPTS, SAMPLED, strict=True)]
    assert alone == expected
    preempt_often(llm)
    assert ids(llm.generate(PROMPTS, SAMPLED)) == expected


def test_requests_of_one_batch_mix(target: Any, plain: list[list[int]]) -> None:
    """Greedy, filtered, shallower and plain requests; logprobs are those of plain decoding."""
    kinds = [
        SamplingParams(temperature=0, max_tokens=24, logprobs=2),
        SamplingParams(temperature=1.2, top_k=5, seed=3, max_tokens=24),
        SamplingParams(temperature=0, max_tokens=24, num_speculative_tokens=1),
        SamplingParams(temperature=0, max_tokens=24, num_speculative_tokens=0),
    ]
    outputs = with_tree(target, half_wrong(target)).generate(PROMPTS, kinds)
    assert [ids(outputs)[i] for i in (0, 2, 3)] == [plain[i] for i in (0, 2, 3)]
    assert [o.metrics.num_draft_tokens > 0 for o in outputs if o.metrics] == [True] * 3 + [False]
    (own,) = LLM(target).generate(PROMPTS[:1], kinds[0])
    found, plain_logprobs = outputs[0].outputs[0].logprobs, own.outputs[0].logprobs
    assert found is not None and plain_logprobs is not None
    for got, expected in zip(found, plain_logprobs, strict=True):
        assert got.keys() == expected.keys()
        for token_id, entry in got.items():
            assert entry.logprob == pytest.approx(expected[token_id].logprob, abs=1e-4)


def recorded(monkeypatch: pytest.MonkeyPatch, llm: LLM, prompt: list[int]) -> list[Any]:
    """Decided ids and the proposal of each round of one request."""
    rounds: list[Any] = []
    draw = DraftTree.draw

    def record(self: Any, state: Any, *args: Any) -> Any:
        proposal = draw(self, state, *args)
        rounds.append((state.token_ids[0, : state.num_decided[0]].tolist(), proposal))
        return proposal

    monkeypatch.setattr(DraftTree, "draw", record)
    llm.generate([prompt], SamplingParams(seed=5, max_tokens=24))
    return rounds


@pytest.mark.parametrize("kind", ["half", "head"])
def test_each_node_is_drawn_from_the_law_after_its_own_path(
    monkeypatch: pytest.MonkeyPatch, target: Any, head: Path, kind: str
) -> None:
    """q of every node of every round against the drafter from scratch, caches and moves behind."""
    draft = half_wrong(target)
    llm = with_tree(target, draft if kind == "half" else head)
    rounds = recorded(monkeypatch, llm, PROMPTS[1])
    assert len(rounds) > 5
    for text, proposal in rounds:
        tree = read_token_tree([3, 2, 1]).first(proposal.token_ids.shape[1])
        drafts = proposal.token_ids[0].tolist()
        for node in range(1, tree.num_nodes + 1):
            above = np.flatnonzero(tree.is_seen[tree.parents[node - 1]])[1:]
            path = [drafts[c - 1] for c in above]
            if kind == "head":
                expected = law_from_scratch(target, head, text, path)
            else:
                with torch.inference_mode():
                    expected = draft(torch.tensor([[*text, *path]])).logits[0, -1]
            found = proposal.draft_logits[0, node - 1]
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
        for group in filter(None, tree.children):
            assert len({drafts[c - 1] for c in group}) == len(group)


def test_every_address_is_its_node_s(target: Any) -> None:
    """Drafts and tests by node and depth, each address once."""
    trace = Trace()
    llm = with_tree(target, half_wrong(target), trace=trace)
    llm.generate(PROMPTS, SAMPLED)
    trace.check()
    depths = read_token_tree([3, 2, 1]).depths
    found = {stream: 0 for stream in Stream}
    for use in trace:
        found[use.stream] += 1
        if use.stream in (Stream.DRAFT, Stream.ACCEPT):
            assert use.position == use.anchor + depths[use.node] - 1
        elif use.stream != Stream.TARGET:
            assert use.position == use.anchor + depths[use.node]
    assert min(found[s] for s in (Stream.DRAFT, Stream.ACCEPT, Stream.RESIDUAL, Stream.BONUS)) > 5


def test_a_draft_that_fails_fails_its_request_alone(target: Any, plain: list[list[int]]) -> None:
    broken = half_wrong(target)
    with torch.no_grad():
        broken.model.embed_tokens.weight[12] = float("nan")
    outputs = with_tree(target, broken).generate([PROMPTS[2], PROMPTS[0]], GREEDY)
    assert outputs[0].error is not None and "node 1 of the tree" in outputs[0].error
    assert outputs[1].error is None and ids(outputs)[1] == plain[0]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"speculative_token_tree": [0]}, "at least 1 child"),
        ({"speculative_token_tree": [(0,), (2,)]}, r"\(2,\) without \(1,\)"),
        ({"speculative_token_tree": "3x"}, "by depth, such as"),
        ({"speculative_token_tree": [2], "rejection_sample_method": "block"}, "leave one out"),
        ({"speculative_token_tree": [2], "num_speculative_tokens": 3}, "=3 and .* of depth 1:"),
        ({"speculative_token_tree": [2], "num_speculative_tokens": 4}, "=4 and .* of depth 1:"),
        ({"speculative_token_tree": [2], "confidence_threshold": 0.1}, "confidence_threshold"),
        ({"speculative_token_tree": [2], "process_draft_logits": True}, "process_draft_logits"),
        ({"rejection_sample_method": "tree"}, "needs speculative_token_tree"),
    ],
)
def test_configurations_are_refused_by_name(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SpeculativeConfig.from_dict({"model": "pocket-draft"} | config)


def test_a_depth_that_is_not_given_is_the_tree_s_and_is_kept() -> None:
    chain = SpeculativeConfig(method="ngram")
    assert (chain.num_speculative_tokens, NUM_DRAFTS) == (4, 4)
    tree = SpeculativeConfig(method="suffix", speculative_token_tree=[2, 1, 1])
    assert tree.num_speculative_tokens == replace(tree, tokenizer=None).num_speculative_tokens == 3
    assert SpeculativeConfig.from_dict({"method": "ngram", "num_speculative_tokens": None}) == chain
    with pytest.raises(ValueError, match="=4 and .* of depth 2:"):
        SpeculativeConfig(
            method="suffix", speculative_token_tree=[2, 1], num_speculative_tokens=NUM_DRAFTS
        )


@pytest.mark.parametrize("method", ["ngram", "mtp", "prediction"])
def test_methods_that_draft_chains_take_no_tree(method: str) -> None:
    with pytest.raises(ValueError, match="belongs to method"):
        SpeculativeConfig(method=method, model="x", speculative_token_tree=[2])


def test_a_settled_tree_says_its_rule_and_depth(target: Any) -> None:
    config = SpeculativeConfig(model="pocket-draft", speculative_token_tree=[3, 2])
    assert (config.rule, config.num_speculative_tokens) == ("tree", 2)
    text = with_tree(target, target, [3, 2]).describe()
    assert "trees of 9 tokens, 2 deep" in text and "rule: tree" in text


@pytest.mark.skipif(
    not find_spec("triton") or os.environ.get("TRITON_INTERPRET") != "1",
    reason="kernels on the CPU need Triton's interpreter",
)
def test_kernels_give_the_host_s_text(target: Any) -> None:
    """In Triton's interpreter, `fast`: a wrong row, node or path would show in a few rounds."""
    prompts = [[1, 2, 3], [5, 6]]
    # a row that is processed goes to the host's processors and back
    hot = SamplingParams(seed=3, max_tokens=5, temperature=0.3, frequency_penalty=1.0)
    params = [hot, GREEDY_FEW]
    texts = []
    for impl in ("auto", "triton"):
        llm = with_tree(target, half_wrong(target), [2, 1], impl=impl)
        with np.errstate(all="ignore"):
            outputs = llm.generate(prompts, params)
        assert accepted(outputs) > 0
        texts.append(ids(outputs))
    assert texts[0] == texts[1]


@pytest.mark.skipif(
    not find_spec("triton") or os.environ.get("TRITON_INTERPRET") != "1",
    reason="kernels on the CPU need Triton's interpreter",
)
def test_draws_hand_on_the_statistics_that_verification_would_find(
    target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bits come of a call that finds its own, and others if they are those of other laws.

    Planted: row sums doubled, which halves q; a margin somewhere has to move.
    """
    from fairdraft import ops

    verify, moved = ops.verify_tree, []

    def compared(*given: Any, draft_stats: Any, **options: Any) -> Any:
        without, wrong = (
            verify(*given, draft_stats=stats, **options)
            for stats in (None, replace(draft_stats, row_sum=2 * draft_stats.row_sum))
        )
        found = verify(*given, draft_stats=draft_stats, **options)
        assert torch.equal(found.token_ids, without.token_ids)
        assert torch.equal(found.margin, without.margin)
        moved.append(not torch.equal(found.margin, wrong.margin))
        return found

    monkeypatch.setattr(ops, "verify_tree", compared)
    llm = with_tree(target, half_wrong(target), [2, 1], impl="triton")
    params = [SamplingParams(seed=3, max_tokens=4, temperature=0.7, top_k=20), GREEDY_FEW]
    with np.errstate(all="ignore"):
        outputs = llm.generate([[1, 2, 3], [5, 6]], params)
    assert not any(output.error for output in outputs) and any(moved)
