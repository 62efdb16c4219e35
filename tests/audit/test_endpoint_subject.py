"""What an endpoint's answers become, and which answers are refused.

Axes: N tokens, k tokens listed beside each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fairdraft.audit.openai import Patience
from fairdraft.audit.subject import Batch, InvalidSubject
from fairdraft.audit.subjects.endpoint import EndpointRequest, EndpointSubject
from fairdraft.stats.families import FAMILIES
from fairdraft.stats.tokens import REST
from tests.audit.fake_server import VOCAB, FakeServer, Handler, fake_server

QUICK = Patience(timeout=5.0, attempts=3, backoff=0.01, max_wait=1.0)
FEW = EndpointRequest(num_logprobs=6, max_tokens=12, seed=5)


def subject(server: FakeServer, request: EndpointRequest = FEW, **options: Any) -> EndpointSubject:
    given = {"model": "fake", "patience": QUICK, "concurrency": 4, "texts_per_batch": 4}
    return EndpointSubject(server.url, request=request, **(given | options))


def first_batches(audited: EndpointSubject, count: int = 1, cursor: Any = None) -> list[Batch]:
    stream = audited.batches(cursor)
    try:
        return [next(stream) for _ in range(count)]
    finally:
        stream.close()  # type: ignore[attr-defined]


def refusal(audited: EndpointSubject, count: int = 3) -> str:
    with pytest.raises(InvalidSubject) as caught:
        first_batches(audited, count)
    return str(caught.value)


def test_tokens_are_scored_by_what_came_with_them(server: FakeServer) -> None:
    [batch] = first_batches(subject(server))
    tokens = batch.tokens
    assert len(tokens) == 4 * 12
    assert tokens.num_columns == FEW.num_logprobs + 1
    assert tokens.ids is not None
    assert (tokens.ids[:, -1] == REST).all()
    np.testing.assert_allclose(tokens.target.sum(axis=1), 1)
    law = server.law[tokens.previous[:, 0]]
    listed = np.take_along_axis(law, tokens.ids[:, :-1], axis=1)
    np.testing.assert_allclose(tokens.target[:, :-1], listed, rtol=1e-9)
    # the list is the law's, whatever came out
    assert (np.sort(tokens.ids[:, :-1]) == np.sort(np.argsort(-law)[:, :6])).all()
    assert (tokens.position.reshape(4, 12) == np.arange(12)).all()
    assert (tokens.text.reshape(4, 12) == np.arange(4)[:, None]).all()


def test_a_token_outside_the_list_is_in_the_rest_cell(server: FakeServer) -> None:
    [batch] = first_batches(subject(server, EndpointRequest(num_logprobs=1, max_tokens=40)))
    tokens = batch.tokens
    emitted = np.array([server.complete(body)["choices"][0]["token_ids"] for body in texts(server)])
    outside = tokens.token_id == REST
    assert 0.2 < outside.mean() < 0.9
    assert tokens.ids is not None
    assert (np.where(outside, tokens.ids[:, 0], REST) != emitted[:4].ravel()).all()
    assert (tokens.token_id[~outside] == emitted[:4].ravel()[~outside]).all()


def texts(server: FakeServer) -> list[dict[str, Any]]:
    """Requests in the order of their seeds, the probe apart."""
    return sorted(server.requests[1:], key=lambda body: body["seed"])


def test_requests_are_plain_sampling_with_seeds_counted_up(server: FakeServer) -> None:
    first_batches(subject(server), 3)
    asked = texts(server)
    assert [body["seed"] for body in asked[:12]] == list(range(5, 17))
    assert len({body["prompt"] for body in asked[:12]}) == 12
    for body in asked:
        assert (body["temperature"], body["top_p"], body["top_k"], body["n"]) == (1, 1, -1, 1)
        assert body["ignore_eos"] and body["repetition_penalty"] == 1


def test_a_resumed_subject_goes_on_where_it_was(server: FakeServer) -> None:
    whole = first_batches(subject(server), 3)
    resumed = first_batches(subject(server), 2, whole[0].cursor)
    for old, new in zip(whole[1:], resumed, strict=True):
        assert old.cursor == new.cursor
        np.testing.assert_array_equal(old.tokens.text, new.tokens.text)
        np.testing.assert_array_equal(old.tokens.column, new.tokens.column)
        np.testing.assert_array_equal(old.tokens.target, new.tokens.target)


def test_token_strings_get_stable_ids(server: FakeServer) -> None:
    server.is_plain_openai = True
    # the ends of texts are kept, since this server knows no ignore_eos
    [batch] = first_batches(subject(server))
    again = first_batches(subject(server))[0]
    assert any("digest of its string" in note for note in batch.notes)
    assert any("refuses vLLM's request fields" in note for note in batch.notes)
    np.testing.assert_array_equal(batch.tokens.token_id, again.tokens.token_id)
    assert batch.tokens.token_id.max() > VOCAB
    assert batch.cursor["identity"]["has_ids"] is False


def test_the_list_of_objects_is_understood_too(server: FakeServer) -> None:
    [lists] = first_batches(subject(server))
    server.form = "content"
    [objects] = first_batches(subject(server))
    np.testing.assert_array_equal(lists.tokens.column, objects.tokens.column)
    np.testing.assert_allclose(lists.tokens.target, objects.tokens.target)


def test_the_only_model_served_needs_no_name(server: FakeServer) -> None:
    first_batches(subject(server, model=None))
    assert {body["model"] for body in server.requests} == {"fake"}


def test_the_key_is_sent_and_never_recorded(server: FakeServer) -> None:
    audited = subject(server, api_key="secret-of-mine")
    first_batches(audited)
    assert server.headers_seen[0]["authorization"] == "Bearer secret-of-mine"
    assert "secret-of-mine" not in repr(audited.info)


@pytest.mark.parametrize(
    ("name", "value"), [("temperature", 0.7), ("temperature", 0.0), ("top_p", 0.9), ("top_k", 5)]
)
def test_other_sampling_is_refused(server: FakeServer, name: str, value: float) -> None:
    request = EndpointRequest(sampling=((name, value),))
    assert f"{name} = {value:g}: a server's logprobs are" in refusal(subject(server, request))
    assert not server.requests


def no_logprobs(number: int, answer: dict[str, Any]) -> None:
    answer["choices"][0]["logprobs"] = None


def fewer(number: int, answer: dict[str, Any]) -> None:
    for row in answer["choices"][0]["logprobs"]["top_logprobs"]:
        for name in sorted(row, key=row.__getitem__)[:3]:
            del row[name]


def another_model(number: int, answer: dict[str, Any]) -> None:
    if number > 6:
        answer["model"] = "other"


def another_fingerprint(number: int, answer: dict[str, Any]) -> None:
    if number > 6:
        answer["system_fingerprint"] = "two"


def foreign_string(number: int, answer: dict[str, Any]) -> None:
    logprobs = answer["choices"][0]["logprobs"]
    logprobs["tokens"] = [name.replace("token_id:", "Ġ") for name in logprobs["tokens"]]


def other_logprob(number: int, answer: dict[str, Any]) -> None:
    logprobs = answer["choices"][0]["logprobs"]
    logprobs["token_logprobs"] = [value - 1 for value in logprobs["token_logprobs"]]


def too_much(number: int, answer: dict[str, Any]) -> None:
    logprobs = answer["choices"][0]["logprobs"]
    rows = [{name: -1.0 for name in row} for row in logprobs["top_logprobs"]]
    logprobs["top_logprobs"], logprobs["token_logprobs"] = rows, [-1.0] * len(rows)


def not_a_number(number: int, answer: dict[str, Any]) -> None:
    answer["choices"][0]["logprobs"]["token_logprobs"][0] = None


def lost_tokens(number: int, answer: dict[str, Any]) -> None:
    if number:
        for values in answer["choices"][0]["logprobs"].values():
            del values[-1:]


def no_choice(number: int, answer: dict[str, Any]) -> None:
    answer["choices"] = []


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (no_logprobs, "the server returned no logprobs"),
        (fewer, "logprobs where 6 were asked"),
        (another_model, "model was 'fake' and is 'other'"),
        (another_fingerprint, "fingerprint was 'one' and is 'two'"),
        (foreign_string, "its string does not match the listed ones"),
        (other_logprob, "two tokens share that string"),
        (too_much, "no logprobs of one law"),
        (not_a_number, "a logprob is None, not a number"),
        (lost_tokens, "every token must be listed"),
        (no_choice, "holds no completion"),
    ],
)
def test_answers_that_cannot_be_scored_are_refused(
    server: FakeServer, edit: Any, message: str
) -> None:
    server.edit = edit
    assert message in refusal(subject(server))


def test_strings_that_coincide_are_refused(server: FakeServer) -> None:
    server.is_plain_openai = True
    server.strings = [f" {i // 2}" for i in range(VOCAB)]
    message = refusal(subject(server))
    assert "share that string" in message or "if strings of tokens coincide" in message


def test_a_hidden_end_token_is_refused(server: FakeServer) -> None:
    server.is_plain_openai = True
    server.lists_end = False
    request = EndpointRequest(num_logprobs=6, max_tokens=200)
    assert "the token that ends a text is not listed" in refusal(subject(server, request), 40)


def test_a_listed_end_token_is_fine(server: FakeServer) -> None:
    server.is_plain_openai = True
    request = EndpointRequest(num_logprobs=6, max_tokens=200)
    batches = first_batches(subject(server, request), 5)
    lengths = np.bincount(np.concatenate([batch.tokens.text for batch in batches]))
    assert (lengths < 200).any()


def test_a_server_that_is_down_is_reported_at_once() -> None:
    with fake_server() as server:
        pass
    message = refusal(subject(server))
    assert "the endpoint cannot be audited" in message
    assert "asked 3 times" in message


def test_a_slow_server_is_given_up(server: FakeServer) -> None:
    import threading

    released = threading.Event()
    server.trouble = lambda number, handler: not released.wait(3.0)
    patience = Patience(timeout=0.2, attempts=2, backoff=0.01)
    try:
        assert "no answer in time (ReadTimeout)" in refusal(subject(server, patience=patience))
    finally:
        released.set()


def test_requests_are_repeated_until_they_succeed(server: FakeServer) -> None:
    calm = first_batches(subject(server), 2)
    failed: set[int] = set()

    def stumble(number: int, handler: Handler) -> bool:
        seed = server.requests[number]["seed"]
        if number % 3 or seed in failed:
            return False
        failed.add(seed)
        if number % 2:
            handler.answer(429, {"error": {"message": "slow down"}}, Retry_After="0.05")
        else:
            handler.answer(503, "overloaded")
        return True

    server.requests.clear()
    server.trouble = stumble
    shaken = first_batches(subject(server), 2)
    assert len(failed) > 3
    notes = " ".join(note for batch in shaken for note in batch.notes)
    assert "asked again after: HTTP 429" in notes
    for old, new in zip(calm, shaken, strict=True):
        np.testing.assert_array_equal(old.tokens.column, new.tokens.column)


def test_a_wait_of_an_hour_is_not_waited_for(server: FakeServer) -> None:
    def limit(number: int, handler: Handler) -> bool:
        handler.answer(429, {"error": {"message": "quota"}}, Retry_After="3600")
        return True

    server.trouble = limit
    message = refusal(subject(server))
    assert "quota" in message and "come back in 3600 s" in message


def test_retry_after_may_be_a_date() -> None:
    from fairdraft.audit.openai import _retry_after

    past = _retry_after("Wed, 21 Oct 2015 07:28:00 GMT")
    assert past is not None and past < 0
    assert _retry_after("soon") is None and _retry_after("nan") is None


def test_a_server_that_vanishes_ends_the_audit_and_keeps_what_came(server: FakeServer) -> None:
    def vanish(number: int, handler: Handler) -> bool:
        if number < 12:
            return False
        handler.close_connection = True
        handler.connection.close()
        return True

    calm = first_batches(subject(server), 4)
    server.requests.clear()
    server.trouble = vanish
    [*whole, last] = list(subject(server).batches())
    assert any("stopped answering after" in note for note in last.notes)
    assert not len(last.tokens) and last.cursor == whole[-1].cursor
    for old, new in zip(calm, whole, strict=False):
        np.testing.assert_array_equal(old.tokens.column, new.tokens.column)


def test_a_server_that_is_gone_when_an_audit_goes_on(server: FakeServer) -> None:
    [before] = first_batches(subject(server))
    server.trouble = lambda number, handler: handler.answer(500, "gone") is None
    [last] = list(subject(server).batches(before.cursor))
    assert last.cursor == before.cursor and not len(last.tokens)
    assert "stopped answering after 4 texts, which count" in last.notes[0]


def test_another_server_when_an_audit_goes_on(server: FakeServer) -> None:
    [before] = first_batches(subject(server))
    server.edit = another_fingerprint
    with pytest.raises(InvalidSubject, match="fingerprint was 'one' and is 'two'"):
        first_batches(subject(server), 1, before.cursor)


def test_errors_of_the_caller_are_not_repeated(server: FakeServer) -> None:
    def refuse(number: int, handler: Handler) -> bool:
        handler.answer(401, {"error": {"message": "no such key"}})
        return True

    server.trouble = refuse
    message = refusal(subject(server))
    assert "no such key" in message and "FAIRDRAFT_API_KEY" in message
    assert len(server.requests) == 1


def test_a_failing_server_is_given_up(server: FakeServer) -> None:
    def fail(number: int, handler: Handler) -> bool:
        handler.answer(500, "<html>oops</html>")
        return True

    server.trouble = fail
    assert "HTTP 500, <html>oops</html> (asked 3 times)" in refusal(subject(server))


def test_what_is_no_json_is_reported(server: FakeServer) -> None:
    def garble(number: int, handler: Handler) -> bool:
        handler.answer(200, "<html>welcome</html>")
        return True

    server.trouble = garble
    assert "the answer is no JSON: <html>welcome</html>" in refusal(subject(server))


LONG = EndpointRequest(num_logprobs=6, max_tokens=600)


def test_no_drafts_where_speculation_was_claimed(server: FakeServer) -> None:
    server.drafted = 70
    message = refusal(subject(server, LONG, speculative=True))
    assert "drafted nothing in 2,400 tokens" in message


def test_drafts_where_plain_decoding_was_claimed(server: FakeServer) -> None:
    server.drafted, server.drafts_per_request = 70, 2
    message = refusal(subject(server, LONG, speculative=False))
    assert "said to decode plainly, and drafted" in message


def test_drafts_are_noted(server: FakeServer) -> None:
    server.drafted, server.drafts_per_request = 70, 2
    [batch] = first_batches(subject(server, LONG, speculative=True))
    assert any("tokens were drafted and 0 accepted" in note for note in batch.notes)


def test_speculation_is_the_callers_word_without_counters(server: FakeServer) -> None:
    [batch] = first_batches(subject(server, LONG, speculative=True))
    assert any("that it speculates is the caller's word" in note for note in batch.notes)


def cell_counts(server: FakeServer, num_texts: int) -> tuple[np.ndarray, np.ndarray]:
    """Observed and expected tokens by rank."""
    request = EndpointRequest(num_logprobs=20, max_tokens=64)
    audited = subject(server, request, texts_per_batch=num_texts, concurrency=16)
    [batch] = first_batches(audited)
    family = next(family for family in FAMILIES if family.name == "rank")
    cells = family.cells(batch.tokens)
    assert cells is not None
    observed = np.bincount(cells.observed, minlength=family.num_cells)
    return observed, cells.expected.sum(axis=0)


def test_ranks_come_as_often_as_the_law_says(server: FakeServer) -> None:
    # 96 texts of 64 tokens; any of 8 cells 6.5 deviations off: under 1e-9 a cell
    observed, expected = cell_counts(server, 96)
    assert observed.sum() == 6144
    assert (np.abs(observed - expected) < 6.5 * np.sqrt(expected) + 6.5).all()


def test_a_server_that_samples_hotter_is_seen(server: FakeServer) -> None:
    law = server.law**0.8
    server.sampled = law / law.sum(axis=1, keepdims=True)
    observed, expected = cell_counts(server, 96)
    assert np.abs(observed - expected)[0] > 6.5 * np.sqrt(expected[0]) + 6.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "localhost:8000"}, "is no http"),
        ({"concurrency": 0}, "concurrency = 0"),
    ],
)
def test_arguments_are_checked(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EndpointSubject(**{"url": "http://localhost:1/v1", **options})


@pytest.mark.parametrize(
    "options", [{"num_logprobs": 0}, {"max_tokens": 0}, {"seed": -1}, {"prompts": []}]
)
def test_requests_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        EndpointRequest(**options)
