"""A completions server that samples from a known law, and misbehaves on request."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

VOCAB = 40
END = 0
#: vLLM's fields, which a plain OpenAI server refuses
EXTENSION = ("top_k", "min_p", "repetition_penalty", "ignore_eos", "return_tokens_as_token_ids")

Trouble = Callable[[int, "Handler"], bool]
Edit = Callable[[int, dict[str, Any]], None]


def markov_table(seed: int = 7, spread: float = 2.0) -> np.ndarray:
    """A law [VOCAB, VOCAB] of the next id for each id."""
    logits = np.random.default_rng(seed).normal(size=(VOCAB, VOCAB)) * spread
    law = np.exp(logits)
    return law / law.sum(axis=1, keepdims=True)


class FakeServer(ThreadingHTTPServer):
    """The server.

    Attributes:
        law: What logprobs are reported from.
        sampled: What tokens are drawn from; another law is a biased server.
        trouble: Called with the serial number of a completion request; true if it answered.
        edit: Called with that number and the answer, which it may change.
        is_plain_openai: Refuses vLLM's fields and reports token strings.
        form: "parallel" or "content".
        drafted: Counter at /metrics; None for no page.
        lists_end: Whether a text's end token is listed.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.law = markov_table()
        self.sampled: np.ndarray | None = None
        self.trouble: Trouble = lambda number, handler: False
        self.edit: Edit = lambda number, answer: None
        self.is_plain_openai = False
        self.form = "parallel"
        self.drafted: int | None = None
        self.drafts_per_request = 0
        self.lists_end = True
        self.strings = [f" word{i}" for i in range(VOCAB)]
        self.requests: list[dict[str, Any]] = []
        self.headers_seen: list[dict[str, str]] = []
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def note(self, body: dict[str, Any], headers: dict[str, str]) -> int:
        with self._lock:
            self.requests.append(body)
            self.headers_seen.append(headers)
            if self.drafted is not None:
                self.drafted += self.drafts_per_request
            return len(self.requests) - 1

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing: clients that stop early hang up."""

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """Samples one text; the same seed and prompt give the same text."""
        prompt = body["prompt"]
        prompt_ids = prompt if isinstance(prompt, list) else [len(prompt) % VOCAB]
        noise = np.random.default_rng([body["seed"], *prompt_ids])
        sampled = self.law if self.sampled is None else self.sampled
        cumulative, likeliest = sampled.cumsum(axis=1), np.argsort(-self.law, axis=1)
        ids, rows, last = [], [], prompt_ids[-1] % VOCAB
        while len(ids) < body["max_tokens"]:
            rows.append(last)
            if body["temperature"] == 0:
                last = int(sampled[last].argmax())
            else:
                last = min(int(cumulative[last].searchsorted(noise.random())), VOCAB - 1)
            ids.append(last)
            if last == END and not body.get("ignore_eos"):
                break
        reason = "length" if len(ids) == body["max_tokens"] and ids[-1] != END else "stop"
        reason = "length" if body.get("ignore_eos") else reason
        counted = len(ids)
        if reason == "stop" and not self.lists_end:
            ids, rows = ids[:-1], rows[:-1]
        laws = np.log(self.law[rows])
        names = self.strings
        if body.get("return_tokens_as_token_ids"):
            names = [f"token_id:{i}" for i in range(VOCAB)]
        listed = likeliest[rows, : body["logprobs"]].tolist()
        choice = {"index": 0, "text": "", "finish_reason": reason}
        choice["logprobs"] = self._logprobs(ids, listed, laws, names)
        if body.get("return_token_ids"):
            choice |= {"token_ids": list(ids), "prompt_token_ids": prompt_ids}
        return {
            "model": body["model"],
            "system_fingerprint": "one",
            "choices": [choice],
            "usage": {"completion_tokens": counted if self.lists_end else len(ids)},
        }

    def _logprobs(
        self, ids: list[int], listed: list[list[int]], laws: np.ndarray, names: list[str]
    ) -> dict[str, Any]:
        own = laws[np.arange(len(ids)), ids].tolist()
        shown = laws.tolist()
        if self.form == "content":
            return {
                "content": [
                    {
                        "id": i,
                        "token": names[i],
                        "logprob": logprob,
                        "top_logprobs": [
                            {"id": j, "token": names[j], "logprob": law[j]} for j in top
                        ],
                    }
                    for i, logprob, top, law in zip(ids, own, listed, shown, strict=True)
                ]
            }
        return {
            "tokens": [names[i] for i in ids],
            "token_logprobs": own,
            "top_logprobs": [
                {names[j]: law[j] for j in (*top, i)}
                for i, top, law in zip(ids, listed, shown, strict=True)
            ],
        }


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # one write an answer, so that no client waits for a delayed acknowledgment
    wbufsize = -1
    server: FakeServer

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self.answer(200, {"data": [{"id": "fake"}]})
        elif self.path == "/metrics" and self.server.drafted is not None:
            self.answer(
                200,
                "# HELP vllm:spec_decode_num_draft_tokens_total Drafts.\n"
                'vllm:spec_decode_num_draft_tokens_total{model_name="fake",engine="0"} '
                f"{float(self.server.drafted)}\n"
                'vllm:spec_decode_num_draft_tokens_total{model_name="other"} 5.0\n'
                'vllm:spec_decode_num_accepted_tokens_total{model_name="fake"} 3.0\n',
            )
        else:
            self.answer(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        number = self.server.note(
            body, {name.lower(): value for name, value in self.headers.items()}
        )
        if self.server.trouble(number, self):
            return
        if self.server.is_plain_openai and any(name in body for name in EXTENSION):
            self.answer(400, {"error": {"message": "Unrecognized request argument: top_k"}})
            return
        answer = self.server.complete(body)
        self.server.edit(number, answer)
        self.answer(200, answer)

    def answer(self, status: int, document: Any, **headers: str) -> None:
        text = document if isinstance(document, str) else json.dumps(document)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def delay(seconds: float) -> Trouble:
    """Every request waits."""

    def wait(number: int, handler: Handler) -> bool:
        time.sleep(seconds)
        return False

    return wait


def vanish_after(count: int) -> Trouble:
    """Closes connections without an answer from request `count` on."""

    def vanish(number: int, handler: Handler) -> bool:
        if number < count:
            return False
        handler.close_connection = True
        handler.connection.close()
        return True

    return vanish


@contextmanager
def fake_server() -> Iterator[FakeServer]:
    """A running server."""
    server = FakeServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
