"""Where features meet: trees and preemption, processors and few candidates, choice and K."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from fairdraft import LLM, SamplingParams
from fairdraft.audit.subjects.engine import EngineSubject
from fairdraft.audit.subjects.engine_copies import with_trace
from fairdraft.noise import Trace
from tests.engine.test_greedy_equality import PROMPTS, half_wrong
from tests.engine.test_trees import preempt_often
from tests.engine.toys import ids, tiny_llama
from tests.speculators.small_heads import KINDS, save_small


def boost(_ids: Any, scores: torch.Tensor) -> torch.Tensor:
    """Lets in one token that few drafters propose."""
    out = scores.clone()
    out[:, 90] = scores.amax(1) + 0.5
    return out


@pytest.mark.parametrize("tree", [[(0,), (1,), (0, 0)], [(0,), (1,), (2,), (0, 0), (2, 0)]])
def test_a_leaf_beside_a_parent_is_not_taken_for_fed(tree: Any) -> None:
    """After a preemption the draft's cache is made anew, and must be what it was."""
    target = tiny_llama(0)
    config = {"model": half_wrong(target), "speculative_token_tree": tree}
    params = [SamplingParams(seed=seed, max_tokens=40, temperature=0.8) for seed in range(4)]
    prompts = [[*PROMPTS[i % len(PROMPTS)], i] for i in range(4)]
    llm = LLM(target, speculative_config=config, max_num_seqs=1)
    alone = ids(llm.generate(prompts, params))
    preempt_often(llm)
    assert ids(llm.generate(prompts, params)) == alone


def test_a_processor_may_let_in_what_is_no_candidate(tmp_path: Path) -> None:
    folder = save_small(tiny_llama(0), tmp_path, **KINDS["dflash2"])
    config = {"model": folder, "num_speculative_tokens": 2, "process_draft_logits": True}
    llm = LLM(tiny_llama(0), speculative_config=config)
    params = SamplingParams(ignore_eos=True, logits_processors=[boost])
    subject = EngineSubject(llm, [[1, 2, 3], [4, 5]], params, num_requests=8, num_tokens=12)
    assert not subject.replay_rounds().mismatches


def test_a_processor_may_draw_what_the_draft_does_not_have() -> None:
    draft = tiny_llama(1, layers=1, vocab_size=80)
    config = {"model": draft, "num_speculative_tokens": 3, "process_draft_logits": True}
    params = [
        SamplingParams(seed=1, max_tokens=12, logits_processors=[boost]),
        SamplingParams(seed=2, max_tokens=12),
    ]
    outputs = LLM(tiny_llama(0), speculative_config=config).generate([[1, 2], [3, 4]], params)
    assert [output.error for output in outputs] == [None, None]


def test_an_audit_s_copy_of_an_adaptive_engine_is_adaptive() -> None:
    config = {"method": "ngram", "adaptive": True, "adaptive_cost_ratio": 0.3}
    llm = LLM(tiny_llama(0), speculative_config=config)
    assert with_trace(llm, Trace()).engine.rows.schedule == llm.engine.rows.schedule is not None


@pytest.mark.parametrize("top_k", [1, 4])
def test_padding_of_a_head_is_no_candidate(tmp_path: Path, top_k: int) -> None:
    """A head of 97 rows for a tokenizer of 80 ids."""
    target = tiny_llama(0)
    words = models.WordLevel({f"t{i}": i for i in range(80)}, unk_token="t0")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words))
    config = {
        "model": save_small(target, tmp_path, **KINDS["dspark"]),
        "num_speculative_tokens": 3,
        "dspark_draft_topk": top_k,
    }
    llm = LLM(target, tokenizer=tokenizer, speculative_config=config)
    params = [SamplingParams(seed=seed, max_tokens=12) for seed in range(6)]
    outputs = llm.generate([{"prompt_token_ids": [1, 2, i]} for i in range(6)], params)
    assert [output.error for output in outputs] == [None] * 6


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"candidates": "ngram"}, "must be a list of dictionaries"),
        ({"candidates": [{"method": "suffix", "speculative_token_tree": [2]}]}, "no K to choose"),
        ({"candidates": [{"method": "ngram", "allow_lossy": True}]}, "in place of 'auto'"),
    ],
)
def test_auto_refuses_what_leaves_it_no_choice(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LLM(tiny_llama(0), speculative_config={"method": "auto", **config})


def test_auto_needs_room_for_rounds() -> None:
    config = {"method": "auto", "budget_seconds": 0.1, "candidates": [{"method": "ngram"}]}
    with pytest.raises(ValueError, match="max_model_len=4: no room for rounds"):
        LLM(tiny_llama(0), max_model_len=4, speculative_config=config)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"method": ["mtp"]}, "is not known"),
        ({"method": "ngram", "rule": []}, "must be one of"),
        ({"method": "ngram", "rejection_sample_method": {}}, "must be one of"),
        ({"method": "ngram", "model": "pocket-draft"}, "takes no 'model'"),
        (
            {"method": "suffix", "speculative_token_tree": [2, 1], "num_speculative_tokens": 4},
            "the tree says it",
        ),
    ],
)
def test_values_of_the_wrong_kind_are_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LLM(tiny_llama(0), speculative_config=config)
