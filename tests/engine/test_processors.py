"""Processors through the engine: every kind of token, limits, errors, mixed batches.

Toy targets make the right answer exact; drafts are wrong about half the time.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from fairdraft import LLM, SamplingParams
from tests.engine.toys import (
    chain_table,
    from_probs,
    ids,
    noisy_copy,
    speculating,
    table_model,
    tiny_llama,
    word_tokenizer,
)
from tests.law.faults import (
    EARLY_ENDS_ONCE_A_ROUND,
    PENALIZED_ONCE_A_ROUND,
    PROMPT_AS_OUTPUT,
    REJECTED_DRAFTS_STAY,
    Fault,
)

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10, 11], [12], [3, 1, 3, 1, 3, 1, 3]]
EOS = 9


def shifted(input_ids: Any, scores: Any) -> Any:
    """Custom: neighbors of the last token and of the one before it are more likely."""
    for back in (1, 2):
        if input_ids.shape[1] >= back:
            scores[0, (input_ids[0, -back] + back) % scores.shape[1]] += 3
    return scores


#: one request for each parameter, and some with several
KINDS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "repetition_penalty": {"repetition_penalty": 1.5},
    "presence_penalty": {"presence_penalty": 1.5},
    "frequency_penalty": {"frequency_penalty": 1.0},
    "negative": {"frequency_penalty": -0.5, "presence_penalty": -1.0, "repetition_penalty": 0.8},
    "logit_bias": {"logit_bias": {5: 3.0, 7: -4.0}},
    "allowed_token_ids": {"allowed_token_ids": list(range(3, 30))},
    "bad_words_ids": {"bad_words_ids": [[5], [3, 1], [7, 8, 9], [3, 60]]},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "min_tokens": {"min_tokens": 9, "stop_token_ids": list(range(40, 80))},
    "logits_processors": {"logits_processors": [shifted]},
    "several": {
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.5,
        "logit_bias": {5: 1.0},
        "bad_words_ids": [[3, 1]],
        "no_repeat_ngram_size": 3,
        "logits_processors": [shifted],
        "min_tokens": 5,
        "stop_token_ids": list(range(60, 80)),
    },
}


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny_llama(0)


@pytest.fixture(scope="module")
def half_wrong() -> Any:
    return noisy_copy(5, 0.02)


def greedy(kind: str, **options: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": 16, **KINDS[kind], **options})


@pytest.fixture(scope="module")
def plain(target: Any) -> dict[str, list[list[int]]]:
    """Greedy texts of plain decoding, one kind after another."""
    llm = LLM(target)
    return {kind: ids(llm.generate(PROMPTS, greedy(kind))) for kind in KINDS}


def check_texts(llm: LLM, plain: dict[str, list[list[int]]]) -> None:
    """All kinds side by side, each prompt under each kind."""
    asked = [(prompt, kind) for prompt in range(len(PROMPTS)) for kind in KINDS]
    outputs = llm.generate([PROMPTS[p] for p, _ in asked], [greedy(kind) for _, kind in asked])
    for (prompt, kind), tokens in zip(asked, ids(outputs), strict=True):
        assert tokens == plain[kind][prompt], kind


@pytest.mark.parametrize(
    ("num_drafts", "process_draft_logits", "rule"),
    [(1, False, "standard"), (4, False, "standard"), (4, True, "standard"), (3, True, "block")],
)
def test_greedy_text_is_that_of_plain_decoding(
    target: Any,
    half_wrong: Any,
    plain: dict[str, list[list[int]]],
    num_drafts: int,
    process_draft_logits: bool,
    rule: str,
) -> None:
    config = {
        "model": half_wrong,
        "num_speculative_tokens": num_drafts,
        "rejection_sample_method": rule,
        "process_draft_logits": process_draft_logits,
    }
    llm = LLM(target, speculative_config=config)
    check_texts(llm, plain)
    texts = {kind: plain[kind] for kind in KINDS}
    assert all(texts[kind] != texts["nothing"] for kind in KINDS if kind != "nothing")


def test_prompt_lookup_keeps_the_text_too(target: Any, plain: dict[str, list[list[int]]]) -> None:
    llm = LLM(target, speculative_config={"method": "ngram", "prompt_lookup_min": 1})
    check_texts(llm, plain)


@pytest.mark.parametrize("process_draft_logits", [False, True])
def test_every_row_of_a_mixed_batch_is_its_solo_run(
    process_draft_logits: bool,
) -> None:
    """Greedy next to hot next to penalized next to biased, filtered ones among them.

    Logits of a table do not depend on the batch, so the same key gives the same tokens.
    """
    generator = np.random.default_rng(0)
    table = generator.normal(size=(97, 97)).astype(np.float32) * 2
    noisy = table_model(table + generator.normal(size=(97, 97)).astype(np.float32))
    llm = speculating(
        table_model(table), noisy, 3, max_num_seqs=64, process_draft_logits=process_draft_logits
    )
    params = [
        SamplingParams(
            temperature=temperature, seed=seed, max_tokens=10, n=2, **KINDS[kind], **more
        )
        for seed, kind in enumerate(KINDS)
        for temperature, more in ((0, {}), (1.3, {"top_k": 7, "min_p": 0.02} if seed % 2 else {}))
    ]
    together = llm.generate([[1, 2, 3]] * len(params), params)
    for output, item in zip(together, params, strict=True):
        [alone] = llm.generate([[1, 2, 3]], item)
        assert [s.token_ids for s in alone.outputs] == [s.token_ids for s in output.outputs]
        assert output.error is None


def test_processed_drafts_stand_more_often(target: Any) -> None:
    """The target drafts for itself: without the penalty on the draft's side some drafts fall."""
    params = SamplingParams(seed=1, max_tokens=40, repetition_penalty=1.8, logit_bias={5: 4.0})
    rates = []
    for on_drafts in (False, True):
        config = {"model": target, "process_draft_logits": on_drafts}
        [output] = LLM(target, speculative_config=config).generate([[1, 2]], params)
        assert output.metrics is not None and output.metrics.acceptance_rate is not None
        rates.append(output.metrics.acceptance_rate)
    assert rates[0] < 0.9 and rates[1] == 1.0


def test_a_preempted_request_goes_on_with_its_history(target: Any, half_wrong: Any) -> None:
    llm = speculating(target, half_wrong, 3)
    params = greedy("several", max_tokens=24)
    [whole] = llm.generate([[1, 2, 3]], params)
    events = []
    for event in llm.stream([[1, 2, 3]], params):
        events += event.outputs[0].token_ids
        if not event.finished and len(events) % 3 == 0:
            llm.engine.preempt(event.request_id)
    assert events == whole.outputs[0].token_ids


#: fault, and a kind of request that it changes
PLANTED: dict[str, tuple[Fault, str]] = {
    "penalties once a round": (PENALIZED_ONCE_A_ROUND, "frequency_penalty"),
    "prompt as output": (PROMPT_AS_OUTPUT, "presence_penalty"),
    "drafts stay": (REJECTED_DRAFTS_STAY, "frequency_penalty"),
    "drafts stay, repetition": (REJECTED_DRAFTS_STAY, "repetition_penalty"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_fault_changes_greedy_text(
    monkeypatch: pytest.MonkeyPatch,
    target: Any,
    half_wrong: Any,
    plain: dict[str, list[list[int]]],
    name: str,
) -> None:
    fault, kind = PLANTED[name]
    differing = 0
    calls = 0
    for prompt, expected in zip(PROMPTS, plain[kind], strict=True):
        with monkeypatch.context() as patch:
            planting = fault.plant(patch)
            llm = speculating(target, half_wrong, 4)
            differing += ids(llm.generate([prompt], greedy(kind))) != [expected]
            calls += planting.count
    assert calls > 0 and differing > 0


@pytest.mark.parametrize("num_drafts", [0, 1, 3])
def test_penalties_count_each_emitted_token_once(num_drafts: int) -> None:
    """The logit that a token had when it came tells its count: no draft was left in it."""
    target, draft = from_probs([0.4, 0.3, 0.2, 0.1]), from_probs([0.1, 0.2, 0.3, 0.4])
    llm = speculating(target, draft, num_drafts) if num_drafts else LLM(target)
    llm.engine.logprobs_mode = "processed_logits"
    params = SamplingParams(seed=3, max_tokens=60, frequency_penalty=0.25, logprobs=0)
    [output] = llm.generate([[0, 0, 1]], params)
    [sample] = output.outputs
    seen: Counter[int] = Counter()
    raw = np.log([0.4, 0.3, 0.2, 0.1])
    for token_id, entry in zip(sample.token_ids, sample.logprobs or [], strict=True):
        expected = raw[token_id] - 0.25 * seen[token_id]
        assert entry[token_id].logprob == pytest.approx(expected, abs=1e-5)
        seen[token_id] += 1


def test_a_custom_processor_sees_every_path_and_keeps_nothing() -> None:
    """Each call gets the decided text and the drafts before its row, whatever was rejected."""
    seen: list[tuple[int, ...]] = []

    def watching(input_ids: Any, scores: Any) -> Any:
        seen.append(tuple(input_ids[0].tolist()))
        return scores

    target, draft = from_probs([0.4, 0.3, 0.2, 0.1]), from_probs([0.1, 0.2, 0.3, 0.4])
    params = SamplingParams(seed=3, max_tokens=30, logits_processors=[watching])
    [output] = speculating(target, draft, 3).generate([[0, 1]], params)
    text = (0, 1, *output.outputs[0].token_ids)
    assert {text[:n] for n in range(2, len(text))} <= set(seen)
    # and some that were rejected
    assert any(path != text[: len(path)] for path in seen)


# --- limits of the text


@pytest.mark.parametrize("num_drafts", range(6))
@pytest.mark.parametrize("by_id", [False, True])
def test_min_tokens_is_exact_at_every_place_of_a_block(num_drafts: int, by_id: bool) -> None:
    """P(end) is .9 everywhere: exactly m other tokens, then the end; rows of 0 to K drafts."""
    probs = np.full(10, 0.1 / 9)
    probs[EOS] = 0.9
    model = from_probs(probs, eos_token_id=None if by_id else EOS)
    llm = speculating(model, model, num_drafts) if num_drafts else LLM(model)
    stops: dict[str, Any] = {"stop_token_ids": [EOS]} if by_id else {}
    params = [
        SamplingParams(
            temperature=0, max_tokens=12, min_tokens=m, num_speculative_tokens=m % 3 + 1, **stops
        )
        for m in range(10)
    ]
    for m, output in enumerate(llm.generate([[0]] * 10, params)):
        [sample] = output.outputs
        assert len(sample.token_ids) == m + 1 and sample.token_ids.index(EOS) == m
        assert sample.finish_reason == "stop"


def test_min_tokens_looked_at_once_a_round_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the end is held back until the next round."""
    planting = EARLY_ENDS_ONCE_A_ROUND.plant(monkeypatch)
    model = from_probs([0.1, 0.9], eos_token_id=1)
    params = SamplingParams(temperature=0, max_tokens=12, min_tokens=2)
    [output] = speculating(model, from_probs([0.9, 0.1]), 3).generate([[0]], params)
    assert planting.count > 0 and output.outputs[0].token_ids == [0, 0, 0, 0, 1]


def test_min_tokens_equal_to_max_tokens_ends_by_length() -> None:
    model = from_probs([0.1, 0.9], eos_token_id=1)
    params = SamplingParams(seed=1, max_tokens=5, min_tokens=5)
    [output] = speculating(model, model, 3).generate([[0]], params)
    assert output.outputs[0].token_ids == [0] * 5
    assert output.outputs[0].finish_reason == "length"


def test_min_tokens_holds_the_end_back_under_ignore_eos_too() -> None:
    """As in vLLM; afterwards the end may come, and the text goes on."""
    model = from_probs([0.1, 0.9], eos_token_id=1)
    params = SamplingParams(temperature=0, max_tokens=5, min_tokens=3, ignore_eos=True)
    [output] = speculating(model, model, 3).generate([[0]], params)
    assert output.outputs[0].token_ids == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("num_drafts", [0, 2, 5])
@pytest.mark.parametrize(("least", "num_tokens"), [(0, 1), (1, 4), (3, 4), (4, 5)])
def test_stop_strings_wait_for_min_tokens(num_drafts: int, least: int, num_tokens: int) -> None:
    """A stop string that completes early ends nothing, then or later, though its text is held."""
    words = ["<s>", "ab", "c", "d", "xa", "bd"]
    model = table_model(chain_table([0, 1, 2, 3, 4, 5], 6))
    config = {"model": model, "num_speculative_tokens": num_drafts} if num_drafts else None
    llm = LLM(model, tokenizer=word_tokenizer(words), speculative_config=config)
    stops = ["b", "xa", "abcz"]
    params = SamplingParams(temperature=0, max_tokens=8, min_tokens=least, stop=stops)
    [output] = llm.generate([[0]], params)
    assert output.outputs[0].token_ids == [1, 2, 3, 4, 5][:num_tokens]
    assert output.outputs[0].finish_reason == "stop"
    assert output.outputs[0].text == {1: "a", 4: "abcd", 5: "abcdxa"}[num_tokens]


@pytest.mark.parametrize("bias", [-100.0, 100.0])
def test_bias_of_a_hundred_bans_or_forces(bias: float) -> None:
    target, draft = from_probs([0.4, 0.3, 0.2, 0.1]), from_probs([0.1, 0.2, 0.3, 0.4])
    params = SamplingParams(seed=1, max_tokens=80, logit_bias={2: bias})
    [output] = speculating(target, draft, 3).generate([[0]], params)
    tokens = output.outputs[0].token_ids
    assert set(tokens) == {2} if bias > 0 else 2 not in tokens


def test_bad_words_hold_across_the_border_of_accepted_and_added_tokens() -> None:
    """a, b, c, d are equally likely; words are matched through drafts, output and spaces."""
    tokenizer = word_tokenizer(["a", "b", "c", "d"])
    target = from_probs([0.25] * 4)
    config = {"model": target, "num_speculative_tokens": 3}
    llm = LLM(target, tokenizer=tokenizer, speculative_config=config)
    params = SamplingParams(
        seed=1, n=8, max_tokens=60, bad_words=["a"], bad_words_ids=[[1, 2], [3, 1, 1]]
    )
    [output] = llm.generate([[3, 1]], params)
    for sample in output.outputs:
        text = "db" + "".join("abcd"[i] for i in sample.token_ids)
        assert not any(word in text for word in ("a", "bc", "dbb"))
        assert {"b", "c", "d"} <= set(text)


# --- logprobs


@pytest.mark.parametrize("num_drafts", [0, 3])
@pytest.mark.parametrize(
    "mode", ["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"]
)
def test_logprobs_are_raw_or_processed(num_drafts: int, mode: Any) -> None:
    """Of accepted, replaced and added tokens alike, against the row of the token before."""
    table = np.random.default_rng(0).normal(size=(6, 6)).astype(np.float32)
    target = table_model(table)
    draft = table_model(table + np.random.default_rng(1).normal(size=(6, 6)))
    config = {"model": draft, "num_speculative_tokens": num_drafts} if num_drafts else None
    llm = LLM(target, speculative_config=config, logprobs_mode=mode)
    params = SamplingParams(
        seed=4, temperature=0.7, top_k=4, max_tokens=40, logprobs=6, logit_bias={1: 1.5, 4: -1.0}
    )
    [output] = llm.generate([[0, 1]], params)
    [sample] = output.outputs
    if num_drafts:
        assert set(sample.token_sources) >= {"draft", "residual", "bonus"}
    previous = 1
    for token_id, entry in zip(sample.token_ids, sample.logprobs or [], strict=True):
        row = table[previous].astype(np.float64)
        if mode.startswith("processed"):
            row[1], row[4] = row[1] + 1.5, row[4] - 1.0
            row[row < np.sort(row)[-4]] = -np.inf
            row /= 0.7
        if mode.endswith("logprobs"):
            row = row - np.log(np.exp(row).sum())
        assert set(entry) == set(np.flatnonzero(row > -np.inf))
        for i, item in entry.items():
            assert item.logprob == pytest.approx(row[i], abs=1e-5)
            assert item.rank == 1 + int((row > row[i]).sum())
        previous = token_id


def test_logprobs_of_a_greedy_request_are_at_temperature_one(target: Any, half_wrong: Any) -> None:
    config = {"model": half_wrong}
    llm = LLM(target, speculative_config=config, logprobs_mode="processed_logprobs")
    [output] = llm.generate([[1, 2]], SamplingParams(temperature=0, max_tokens=6, logprobs=97))
    for entry in output.outputs[0].logprobs or []:
        assert sum(np.exp(item.logprob) for item in entry.values()) == pytest.approx(1)


@pytest.mark.parametrize("length", [1, 2, 7, 40])
def test_prompt_logprobs_are_the_targets(target: Any, half_wrong: Any, length: int) -> None:
    prompt = np.random.default_rng(length).integers(0, 97, length).tolist()
    params = SamplingParams(temperature=0, max_tokens=3, prompt_logprobs=2, n=2)
    short = SamplingParams(temperature=0, max_tokens=2)
    with torch.inference_mode():
        logits = target(input_ids=torch.tensor([prompt])).logits[0].double()
    expected = torch.log_softmax(logits, -1).numpy()
    for llm in (LLM(target), speculating(target, half_wrong, 3)):
        with_logprobs, without = llm.generate([prompt, [5, 6, 7]], [params, short])
        found = with_logprobs.prompt_logprobs
        assert without.prompt_logprobs is None and found is not None
        assert len(found) == length and found[0] is None
        for row, token_id, entry in zip(expected, prompt[1:], found[1:], strict=False):
            assert entry is not None and next(iter(entry)) == token_id
            assert set(entry) == {token_id, *np.argsort(-row)[:2].tolist()}
            assert entry[token_id].logprob == pytest.approx(row[token_id], abs=1e-5)
            assert entry[token_id].rank == 1 + int((row > row[token_id]).sum())
        [bare] = llm.generate([prompt], short)
        assert with_logprobs.outputs[0].token_ids[:2] == bare.outputs[0].token_ids


def test_a_prompt_that_was_scored_keeps_its_keys_between_others(target: Any) -> None:
    """Its neighbors are prefilled in one block that spans its row."""
    prompts = [list(range(1, 13)), list(range(40, 48)), list(range(20, 33))]
    plain = SamplingParams(temperature=0, max_tokens=12)
    scored = SamplingParams(temperature=0, max_tokens=12, prompt_logprobs=0)
    llm = LLM(target)
    alone = [llm.generate([prompt], plain)[0].outputs[0].token_ids for prompt in prompts]
    assert ids(llm.generate(prompts, [plain, scored, plain])) == alone


# --- bad input


@pytest.mark.parametrize("num_drafts", [0, 1, 4])
@pytest.mark.parametrize("rule", ["standard", "block"])
def test_a_request_without_a_token_left_ends_with_an_error(num_drafts: int, rule: str) -> None:
    """After two tokens every n-gram of one is used up; the neighbor goes on."""
    target, draft = from_probs([0.4, 0.3, 0.2, 0.1]), from_probs([0.1, 0.2, 0.3, 0.4])
    config = {"model": draft, "num_speculative_tokens": max(num_drafts, 1)}
    llm = LLM(target, speculative_config={**config, "rejection_sample_method": rule})
    k: dict[str, Any] = {"num_speculative_tokens": num_drafts}
    failing = SamplingParams(seed=1, max_tokens=9, no_repeat_ngram_size=1, **k)
    fine = SamplingParams(seed=1, max_tokens=9, **k)
    failed, neighbor = llm.generate([[0, 1], [0, 1]], [failing, fine])
    assert sorted(failed.outputs[0].token_ids) == [2, 3]
    assert failed.outputs[0].finish_reason == "error"
    assert failed.error == "no token is left after 2 output tokens; loosen no_repeat_ngram_size"
    assert neighbor.error is None and len(neighbor.outputs[0].token_ids) == 9
    assert not llm.engine.has_work


@pytest.mark.parametrize("rule", ["standard", "block"])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda ids_, row: row * torch.nan, "it returned NaN or"),
        (lambda ids_, row: row[:, :2], r"it returned \(1, 2\) in place of \(1, 4\)"),
        (lambda ids_, row: None, "it returned NoneType in place of"),
        (lambda ids_, row: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda ids_, row: row - torch.inf, "no token is left after 3 output tokens"),
    ],
)
def test_a_custom_processor_that_fails_ends_its_request_where_the_walk_comes_to_it(
    wrong: Any, message: str, rule: str
) -> None:
    def failing(input_ids: Any, scores: Any) -> Any:
        return wrong(input_ids, scores) if input_ids.shape[1] == 4 else scores

    target, draft = from_probs([0.4, 0.3, 0.2, 0.1]), from_probs([0.1, 0.2, 0.3, 0.4])
    llm = speculating(target, draft, 5, rejection_sample_method=rule)
    params = SamplingParams(seed=1, max_tokens=9, logits_processors=[failing])
    failed, neighbor = llm.generate([[0]] * 2, [params, SamplingParams(seed=1, max_tokens=9)])
    assert len(failed.outputs[0].token_ids) == 3 and failed.outputs[0].finish_reason == "error"
    with pytest.raises(ValueError, match=message):
        raise ValueError(failed.error)
    assert neighbor.error is None and len(neighbor.outputs[0].token_ids) == 9


def test_a_custom_processor_without_history_fails_at_the_row_at_fault() -> None:
    """It is called for all rows at once, and refuses a row that plain decoding may never see."""

    def refusing(input_ids: Any, scores: Any) -> Any:
        assert input_ids.shape == (len(scores), 0)
        if scores[:, 5].max() > 1:
            raise RuntimeError("the row after token 3")
        return scores

    refusing.depends_on_history = False  # pyright: ignore[reportFunctionMemberAccess]
    table = chain_table([0, 1, 2, 3, 5], 6)
    params = SamplingParams(temperature=0, max_tokens=5, logits_processors=[refusing])
    [failed] = speculating(table_model(table), table_model(table), 4).generate([[0]], params)
    assert failed.outputs[0].token_ids == [1, 2, 3]
    assert failed.error == ("logits processor refusing failed: RuntimeError: the row after token 3")
    astray = table_model(chain_table([0, 3, 3, 3, 3, 3], 6))
    calm = table_model(chain_table([0, 1, 2, 4, 4], 6) + chain_table([3, 5], 6))
    [output] = speculating(calm, astray, 4).generate([[0]], params)
    assert output.error is None and output.outputs[0].token_ids[:3] == [1, 2, 4]


def test_an_end_before_a_broken_row_is_the_end() -> None:
    """The drafted path goes on past the end of the text, where nothing is left."""
    table = chain_table([0, 1, 2, EOS, 3, 4], 10)
    model = table_model(table, eos_token_id=EOS)
    bad = SamplingParams(temperature=0, max_tokens=9, bad_words_ids=[[EOS, i] for i in range(10)])
    [output] = speculating(model, model, 5).generate([[0]], bad)
    assert output.outputs[0].token_ids == [1, 2, EOS] and output.error is None
    assert output.outputs[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repetition_penalty": 0.0}, r"repetition_penalty=0\.0: .*1 is off"),
        ({"repetition_penalty": float("nan")}, "repetition_penalty=nan"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty=inf"),
        ({"presence_penalty": 2.1}, r"presence_penalty=2\.1: must be from -2 to 2"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty=nan"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size=-1"),
        ({"no_repeat_ngram_size": 1.5}, r"no_repeat_ngram_size=1\.5"),
        ({"min_tokens": -1}, "min_tokens=-1"),
        ({"min_tokens": 17}, "min_tokens=17 is above max_tokens=16: lower it"),
        ({"logit_bias": {1: float("inf")}}, r"logit_bias\[1\]=inf: must be finite; to ban"),
        ({"logit_bias": {1: float("nan")}}, r"logit_bias\[1\]=nan"),
        ({"logit_bias": {"1": 1.0}}, "a token id of logit_bias='1'"),
        ({"logit_bias": [1]}, r"logit_bias=\[1\]: must be a dict"),
        ({"allowed_token_ids": []}, r"allowed_token_ids=\[\]: .*None allows"),
        ({"allowed_token_ids": [1.5]}, r"allowed_token_ids=1\.5"),
        ({"bad_words": "word"}, "bad_words='word': must be a list"),
        ({"bad_words": [" "]}, "bad_words holds ' '"),
        ({"bad_words_ids": [[]]}, r"bad_words_ids holds \[\]"),
        ({"bad_words_ids": [5]}, "bad_words_ids holds 5: .*such as"),
        ({"bad_words_ids": [["a"]]}, "bad_words_ids='a'"),
        ({"logits_processors": [3]}, "logits_processors holds 3"),
        ({"prompt_logprobs": -1}, "prompt_logprobs=-1"),
    ],
)
def test_bad_parameters_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingParams(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"logit_bias": {97: 1.0}}, r"prompts\[1\]: logit_bias holds 97; .* ids 0 to 96"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias holds -1"),
        ({"allowed_token_ids": [3, 100]}, "allowed_token_ids holds 100"),
        ({"bad_words_ids": [[3], [4, 97]]}, "bad_words_ids holds 97"),
        ({"bad_words": ["no"]}, r"prompts\[1\]: bad_words=\['no'\] needs a tokenizer"),
    ],
)
def test_parameters_that_do_not_fit_the_target_are_refused(
    target: Any, options: dict[str, Any], message: str
) -> None:
    llm = LLM(target)
    with pytest.raises(ValueError, match=message):
        llm.generate([[1], [2]], [SamplingParams(), SamplingParams(**options)])
    assert not llm.engine.has_work


def test_a_word_that_the_tokenizer_does_not_know_is_refused() -> None:
    tokenizer = word_tokenizer(["a", "b"])
    tokenizer.unk_token = "a"
    llm = LLM(table_model([0.0, 1.0]), tokenizer=tokenizer)
    with pytest.raises(ValueError, match="bad_words holds 'zz', which the tokenizer"):
        llm.generate([[0]], SamplingParams(bad_words=["zz"]))


def test_an_unknown_logprobs_mode_is_refused(target: Any) -> None:
    with pytest.raises(ValueError, match="logprobs_mode='cooked': must be one of raw_logprobs"):
        LLM(target, logprobs_mode="cooked")  # pyright: ignore[reportArgumentType]
