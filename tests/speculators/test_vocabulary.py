"""Drafts of another vocabulary size are mapped; drafts of another tokenizer are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fairdraft import LLM, SamplingParams
from fairdraft.speculators import VocabularyMap, match_vocabularies
from tests.engine.toys import from_probs, ids, speculating, table_model, tiny_llama, word_tokenizer

WORDS = [f"w{i}" for i in range(12)]


def chi_square(tokens: Any, probs: np.ndarray) -> float:
    counts = np.bincount(tokens, minlength=len(probs))
    assert counts[probs == 0].sum() == 0
    kept = probs > 0
    expected = len(tokens) * probs[kept]
    return float(((counts[kept] - expected) ** 2 / expected).sum())


def first_tokens(llm: LLM, count: int) -> np.ndarray:
    params = [SamplingParams(seed=seed, max_tokens=3) for seed in range(count)]
    return np.array(ids(llm.generate([[0]] * count, params)))


def test_a_narrower_draft_leaves_the_tail_to_rejection() -> None:
    probs = np.r_[np.full(10, 0.094), 0.03, 0.03]
    llm = speculating(from_probs(probs), table_model(np.zeros(10)), 2, max_num_seqs=512)
    # ids 10 and 11 are in the prompt and in the text: the draft reads another id in their place
    prompt = [11, 0, 10, 11, 10, 11, 10, 11, 10, 11, 10]
    params = [SamplingParams(seed=seed, max_tokens=3) for seed in range(8000)]
    tokens = np.array(ids(llm.generate([prompt] * 8000, params)))
    for column in tokens.T:
        assert chi_square(column, probs) < 48.9
        # 5 sigma of the tail's .06 is .0133
        assert abs(float((column >= 10).mean()) - 0.06) < 0.0133


def test_a_wider_draft_never_proposes_foreign_ids() -> None:
    probs = np.full(8, 1 / 8)
    wide = np.zeros(12)
    wide[8:] = 5.0
    llm = speculating(from_probs(probs), table_model(wide), 2, max_num_seqs=512)
    tokens = first_tokens(llm, 4000)
    assert tokens.max() < 8
    for column in tokens.T:
        assert chi_square(column, probs) < 40.5


@pytest.mark.parametrize("num_drafts", [0, 3])
@pytest.mark.parametrize("temperature", [0, 1])
def test_padding_of_the_head_is_never_emitted(num_drafts: int, temperature: float) -> None:
    """The head has 16 rows and the tokenizer 12 ids; the padding holds the largest logits."""
    row = np.zeros(16)
    row[12:] = 50
    target, tokenizer = table_model(row), word_tokenizer(WORDS)
    config = {"model": target, "tokenizer": tokenizer, "num_speculative_tokens": num_drafts}
    llm = LLM(target, tokenizer=tokenizer, speculative_config=config if num_drafts else None)
    params = [
        SamplingParams(seed=seed, temperature=temperature, max_tokens=5, logprobs=1)
        for seed in range(40)
    ]
    outputs = llm.generate([[0]] * 40, params)
    assert max(max(tokens) for tokens in ids(outputs)) < 12
    for output in outputs:
        logprobs = output.outputs[0].logprobs
        assert logprobs is not None
        for entry in logprobs:
            assert max(entry) < 12
            assert next(iter(entry.values())).logprob == pytest.approx(-np.log(12))


def test_two_swapped_tokens_are_refused_by_id() -> None:
    swapped = list(WORDS)
    swapped[5], swapped[7] = swapped[7], swapped[5]
    target = tiny_llama(0, vocab_size=12)
    draft = tiny_llama(1, layers=1, vocab_size=12)
    config = {"model": draft, "tokenizer": word_tokenizer(swapped)}
    with pytest.raises(
        ValueError, match=r"id 5 is 'w5' in the target and 'w7' in the draft \(2 of"
    ):
        LLM(target, tokenizer=word_tokenizer(WORDS), speculative_config=config)
    config["check_vocabulary"] = False
    llm = LLM(target, tokenizer=word_tokenizer(WORDS), speculative_config=config)
    params = SamplingParams(temperature=0, max_tokens=8)
    assert ids(llm.generate([1, 2], params)) == ids(LLM(target).generate([1, 2], params))


def test_vocabularies_that_agree_where_they_overlap_are_mapped() -> None:
    few, many = word_tokenizer(WORDS[:9]), word_tokenizer(WORDS)
    assert match_vocabularies(12, 9, many, few) == VocabularyMap(12, 9)
    assert match_vocabularies(9, 12, few, many) == VocabularyMap(9, 12)
    assert match_vocabularies(12, 16, many, None) == VocabularyMap(12, 16)
    with pytest.raises(ValueError, match="use a draft with the target's tokenizer"):
        match_vocabularies(12, 12, many, word_tokenizer(WORDS[::-1]))


def test_a_draft_reads_ids_that_it_lacks_as_unknown() -> None:
    few, many = word_tokenizer(WORDS[:9]), word_tokenizer(WORDS)
    few.unk_token = "w3"
    vocabulary = match_vocabularies(12, 9, many, few)
    assert vocabulary.known(np.array([[1, 9], [11, 8]])).tolist() == [[1, 3], [3, 8]]
    assert VocabularyMap(9, 12).known(np.array([1, 8])).tolist() == [1, 8]


def test_fit_pads_and_cuts() -> None:
    logits = torch.arange(8.0).reshape(2, 4)
    assert VocabularyMap(4, 4).fit(logits) is not None
    assert torch.equal(VocabularyMap(3, 4).fit(logits), logits[:, :3])
    wide = VocabularyMap(6, 4).fit(logits)
    assert torch.equal(wide[:, :4], logits) and torch.isneginf(wide[:, 4:]).all()
    # a padded head: only the ids that the draft really has count
    assert torch.isneginf(VocabularyMap(4, 3).fit(logits)[:, 3:]).all()
    assert [VocabularyMap(t, d).describe() for t, d in ((4, 4), (6, 4), (3, 4))] == [
        "same 4 ids",
        "draft lacks ids 4 to 5; never drafted",
        "draft ids 3 to 3 are dropped",
    ]
