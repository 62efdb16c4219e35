"""A sitting with a completions endpoint: requests ahead of time, answers in order and checked."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from fairdraft.audit.completions import Completion
from fairdraft.audit.endpoint_request import EndpointRequest
from fairdraft.audit.openai import EndpointClient, EndpointError
from fairdraft.audit.subject import InvalidSubject
from fairdraft.audit.subjects.answers import AnswerChecks, Identity

__all__ = ["Conversation", "reason"]

# a server that is down should be reported soon
_PROBE_ATTEMPTS = 3
_REFUSALS = (400, 404, 415, 422)


class Conversation:
    """Asks for texts, many at once, and hands them over in the order of their numbers.

    Args:
        client: Open; its concurrency says how many requests are sent ahead.
        request: What to ask for.
        model: Name of the model there; None takes the only one served.
        first: Number of the first text.
        identity: Who must answer; None takes whoever does.
        encode: Makes token ids of a prompt; None sends it as text.

    Attributes:
        client: The same.
        model: The name that is asked for.
        is_extended: Whether the server knows vLLM's request fields.

    Raises:
        EndpointError: If the server does not answer.
        InvalidSubject: If it is another, or its answer cannot be scored.
    """

    def __init__(
        self,
        client: EndpointClient,
        request: EndpointRequest,
        model: str | None = None,
        first: int = 0,
        identity: Identity | None = None,
        encode: Callable[[str], list[int]] | None = None,
    ) -> None:
        self.client = client
        self.request = request
        self.model = model or _only_model(client)
        self._encode = encode
        self._next = first
        self._waiting: deque[Future[Any]] = deque()
        self.is_extended, answer = self._probe()
        self._checks = AnswerChecks(identity)
        self._has_ids = self._checks.read(answer, request.num_logprobs).has_ids

    @property
    def identity(self) -> Identity:
        """Who answers."""
        assert self._checks.identity is not None
        return self._checks.identity

    def next(self) -> Completion:
        """The next text.

        Raises:
            EndpointError: If the server stopped answering.
            InvalidSubject: If its answer cannot be scored.
        """
        # ahead by two rounds, so that the slowest text does not idle the server
        while len(self._waiting) < 2 * self.client.concurrency:
            self._waiting.append(self.client.post("/completions", self._body(self.is_extended)))
            self._next += 1
        return self._checks.read(self._waiting.popleft().result(), self.request.num_logprobs)

    def about(self) -> list[str]:
        """Sentences about what the server can do."""
        notes = []
        if not self.is_extended:
            notes.append(
                "the server refuses vLLM's request fields: its own defaults of top_k, min_p and "
                "repetition_penalty are taken to be off, and texts may end early"
            )
        if not self._has_ids:
            notes.append("the server reports token strings; a token's id is a digest of its string")
        return notes

    def troubles(self) -> list[str]:
        """Sentences about requests that had to be repeated."""
        return [f"some requests were asked again after: {name}" for name in self.client.troubles]

    # one short request, which tells whether the server knows vLLM's fields
    def _probe(self) -> tuple[bool, Any]:
        def ask(extended: bool) -> Any:
            body = self._body(extended) | {"max_tokens": 1}
            return self.client.post("/completions", body, attempts=_PROBE_ATTEMPTS).result()

        try:
            return True, ask(True)
        except EndpointError as error:
            if error.status not in _REFUSALS:
                raise
            try:
                return False, ask(False)
            except EndpointError:
                # the second refusal may only be about the same thing in fewer words
                raise error from None

    def _body(self, extended: bool) -> dict[str, Any]:
        body = self.request.body(self.model, self._next, extended=extended)
        if self._encode is not None:
            body["prompt"] = self._encode(body["prompt"])
        return body


def reason(error: EndpointError) -> str:
    """Why a server does not answer, and what may help."""
    hints = {
        401: "; set FAIRDRAFT_API_KEY to a key that it takes",
        403: "; set FAIRDRAFT_API_KEY to a key that it takes",
        404: "; the URL should be the one that ends in /v1, and --model one of its models",
    }
    return f"{error}{hints.get(error.status or 0, '')}"


def _only_model(client: EndpointClient) -> str:
    served = client.get("/models", attempts=2)
    names = [entry.get("id") for entry in served.get("data", [])]
    if len(names) != 1:
        raise InvalidSubject(
            f"the server offers {', '.join(map(str, names)) or 'no model'}; name one with --model"
        )
    return str(names[0])
