"""A request that fails says why, keeps what it had, and leaves its neighbors alone."""

from __future__ import annotations

import signal
from signal import default_int_handler
from typing import Any

import numpy as np
import pytest

import fairdraft.engine.commit
from fairdraft import LLM, SamplingParams
from fairdraft.engine import GenerationInterrupted
from fairdraft.engine.round import RoundRunner
from fairdraft.engine.rows import RowTable
from fairdraft.engine.stopping import SequenceText
from fairdraft.models import CausalLM
from fairdraft.speculators import DraftModelSpeculator
from tests.engine.toys import (
    chain_table,
    ids,
    speculating,
    table_model,
    tiny_llama,
    word_tokenizer,
)

ORDER = [0, 1, 2, 3, 4, 5]
OTHER = [6, 7, 6, 7, 6, 7, 6]


def broken_after(token: int, value: float) -> np.ndarray:
    """Counts 0 to 5, goes 6, 7, 6, 7 beside it, and has a broken row after `token`."""
    table = chain_table(ORDER, 8)
    table[6, 7] = table[7, 6] = 20
    table[token] = value
    return table


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("num_drafts", [0, 1, 2, 4])
@pytest.mark.parametrize("broken", [0, 1, 2, 3])
@pytest.mark.parametrize("temperature", [0, 1e-3])
def test_a_broken_target_row_ends_its_request_only(
    broken: int, num_drafts: int, value: float, temperature: float
) -> None:
    target = table_model(broken_after(broken, value))
    clean = table_model(broken_after(5, 0.0))
    llm = speculating(target, clean, num_drafts) if num_drafts else LLM(target)
    params = SamplingParams(temperature=temperature, seed=1, max_tokens=6)
    failed, neighbor = llm.generate([[0], [6]], params)
    assert failed.outputs[0].finish_reason == "error" and failed.finished
    # the tokens before it stand, and nothing was made up
    assert failed.outputs[0].token_ids == ORDER[1 : broken + 1]
    assert failed.error is not None and failed.error.startswith("target model 'TableLM': ")
    assert {np.nan: "NaN", np.inf: "+inf", -np.inf: "masked"}[value] in failed.error
    assert neighbor.outputs[0].token_ids == OTHER[1:] and neighbor.error is None
    assert not llm.engine.has_work


def test_a_broken_row_that_is_not_read_fails_nothing() -> None:
    """The draft proposes a token after which the target is NaN; the target never takes it."""
    table = chain_table(ORDER, 8)
    table[7] = np.nan
    draft = table_model(np.eye(8, dtype=np.float32)[7] * 20)
    llm = speculating(table_model(table), draft, 3)
    [output] = llm.generate([0], SamplingParams(temperature=0, max_tokens=5))
    assert output.error is None and output.outputs[0].token_ids == ORDER[1:]


@pytest.mark.parametrize("broken", [0, 1, 3])
@pytest.mark.parametrize("temperature", [0, 1e-3])
def test_a_broken_draft_row_fails_its_request_by_name(broken: int, temperature: float) -> None:
    target = table_model(broken_after(5, 0.0))
    draft = table_model(broken_after(broken, np.nan))
    llm = speculating(target, draft, 2)
    params = SamplingParams(temperature=temperature, seed=1, max_tokens=6)
    failed, neighbor = llm.generate([[0], [6]], params)
    assert failed.outputs[0].finish_reason == "error"
    assert failed.error is not None and failed.error.startswith("draft model 'TableLM', draft ")
    tokens = failed.outputs[0].token_ids
    assert tokens == ORDER[1 : len(tokens) + 1] and len(tokens) <= broken
    assert neighbor.outputs[0].token_ids == OTHER[1:] and neighbor.error is None


def test_a_row_with_one_finite_logit_always_gives_it() -> None:
    row = np.full(8, -np.inf, np.float32)
    row[5] = -80.0
    llm = speculating(table_model(row), table_model(np.zeros(8)), 3)
    [output] = llm.generate([0], SamplingParams(temperature=100, seed=1, max_tokens=50))
    assert output.outputs[0].token_ids == [5] * 50


def test_one_sample_may_fail_while_the_others_finish() -> None:
    table = np.zeros((4, 4), np.float32)
    table[3] = np.nan
    [output] = LLM(table_model(table)).generate([0], SamplingParams(n=12, seed=5, max_tokens=4))
    reasons = {sample.finish_reason for sample in output.outputs}
    assert reasons == {"error", "length"} and output.error
    for sample in output.outputs:
        assert (sample.finish_reason == "error") == (3 in sample.token_ids[:3])
        assert 3 not in sample.token_ids[:-1]


def interrupt_at(llm: LLM, round_number: int) -> None:
    """Ctrl-C in the given round."""
    step, count = llm.engine.step, 0

    def interrupted() -> Any:
        nonlocal count
        count += 1
        if count == round_number:
            raise KeyboardInterrupt
        return step()

    llm.engine.step = interrupted


def test_ctrl_c_keeps_what_was_there() -> None:
    llm = speculating(tiny_llama(0), tiny_llama(1, layers=1), 2, max_num_seqs=2)
    prompts, params = [[1, 2], [3], [4, 5]], SamplingParams(seed=1, max_tokens=30)
    whole = ids(llm.generate(prompts, params))
    interrupt_at(llm, 5)
    with pytest.raises(KeyboardInterrupt) as caught:
        llm.generate(prompts, params)
    assert isinstance(caught.value, GenerationInterrupted)
    first, second, third = caught.value.outputs
    for output, tokens in zip((first, second), whole, strict=False):
        [sample] = output.outputs
        assert sample.finish_reason == "abort" and output.finished
        assert len(sample.token_ids) >= 4
        assert sample.token_ids == tokens[: len(sample.token_ids)]
    assert third.outputs[0].token_ids == [] and third.outputs[0].finish_reason == "abort"
    assert not llm.engine.has_work and not llm.engine.requests
    # the engine goes on as if nothing had happened
    assert ids(llm.generate(prompts, params)) == whole


def test_ctrl_c_in_a_stream_carries_everything() -> None:
    llm = LLM(tiny_llama(0))
    interrupt_at(llm, 4)
    seen: list[int] = []
    with pytest.raises(GenerationInterrupted) as caught:
        for event in llm.stream([1, 2], SamplingParams(seed=1, max_tokens=30)):
            seen += event.outputs[0].token_ids
    [output] = caught.value.outputs
    assert output.outputs[0].token_ids == seen and len(seen) == 3
    assert output.outputs[0].finish_reason == "abort"


def test_a_stream_that_is_closed_or_a_failing_callback_frees_its_rows() -> None:
    llm = LLM(tiny_llama(0))
    stream = llm.stream([[1, 2], [3]], SamplingParams(max_tokens=30))
    next(stream)
    assert llm.engine.rows.num_rows == 2
    stream.close()  # pyright: ignore[reportAttributeAccessIssue]
    assert llm.engine.rows.num_rows == 0 and not llm.engine.requests

    def fail(done: int, most: int) -> None:
        raise RuntimeError("callback")

    with pytest.raises(RuntimeError, match="callback"):
        llm.generate([[1, 2], [3]], SamplingParams(max_tokens=30), progress=fail)
    assert llm.engine.rows.num_rows == 0 and not llm.engine.requests


def test_requests_that_ended_cannot_be_preempted_or_aborted() -> None:
    llm = LLM(tiny_llama(0))
    [output] = llm.generate([1], SamplingParams(max_tokens=1))
    for method in (llm.engine.preempt, llm.engine.abort):
        with pytest.raises(ValueError, match="is not running; it ended or never began"):
            method(output.request_id)


PLACES = {
    "admit": (RowTable, "admit"),
    "prefill": (CausalLM, "prefill"),
    "propose": (DraftModelSpeculator, "_feed_drafts"),
    "forward": (RoundRunner, "_forward"),
    "verify": (RoundRunner, "_verify"),
    "text": (SequenceText, "push"),
    "logprobs": (fairdraft.engine.commit, "gather_logprobs"),
    "remove": (RowTable, "release"),
}


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("call", [1, 2, 4])
def test_ctrl_c_anywhere_leaves_the_others_whole(
    where: str, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was going on is undone or finished; a neighbor's stream goes on unharmed."""
    words = [f"<{i}>" for i in range(97)]
    llm = speculating(tiny_llama(0), tiny_llama(1, layers=1), 2)
    llm.target.tokenizer = word_tokenizer(words)
    quiet = SamplingParams(seed=3, max_tokens=20)
    params = SamplingParams(seed=1, max_tokens=20, logprobs=0, stop="never")
    prompts = [[1, 2, 5], [3, 4], [3, 4, 6, 7]]
    whole = llm.generate(prompts, [params, quiet, params])
    expected, beside, late = ids(whole)
    stream = llm.stream(prompts[1], quiet)
    first = next(stream).outputs[0]
    seen, shown = list(first.token_ids), first.text
    owner, name = PLACES[where]
    original, count = getattr(owner, name), 0

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count == call:
            signal.raise_signal(signal.SIGINT)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, interrupted)
    try:
        outputs = llm.generate([prompts[0], prompts[2]], params)
    except GenerationInterrupted as interruption:
        outputs = interruption.outputs
        assert {o.outputs[0].finish_reason for o in outputs} <= {"abort", "length"}
    for output, tokens in zip(outputs, (expected, late), strict=True):
        [sample] = output.outputs
        assert sample.token_ids == tokens[: len(sample.token_ids)]
        assert sample.logprobs is not None and len(sample.logprobs) == len(sample.token_ids)
        assert sample.text == "".join(words[i] for i in sample.token_ids)
    monkeypatch.undo()
    for event in stream:
        for output in event.outputs:
            seen += output.token_ids
            shown += output.text
    assert seen == beside and shown == whole[1].outputs[0].text
    assert not llm.engine.has_work and signal.getsignal(signal.SIGINT) is default_int_handler


def test_a_stream_that_is_never_read_runs_nothing() -> None:
    llm = LLM(tiny_llama(0))
    llm.stream([1, 2], SamplingParams(max_tokens=3))
    assert not llm.engine.has_work
    ids(llm.generate([[1]], SamplingParams(max_tokens=2)))
    assert not llm.engine.requests


def test_threads_share_an_engine() -> None:
    from concurrent.futures import ThreadPoolExecutor

    llm = speculating(tiny_llama(0), tiny_llama(1, layers=1), 3, max_num_seqs=3)
    jobs = [([1 + i, 2], SamplingParams(seed=i, max_tokens=12)) for i in range(6)]
    expected = [ids(llm.generate(*job))[0] for job in jobs]

    def stream(job: Any) -> list[int]:
        return [
            i for event in llm.stream(*job) for output in event.outputs for i in output.token_ids
        ]

    with ThreadPoolExecutor(4) as pool:
        whole = [pool.submit(llm.generate, *job) for job in jobs]
        events = [pool.submit(stream, job) for job in jobs]
        assert [ids(future.result())[0] for future in whole] == expected
        assert [future.result() for future in events] == expected
