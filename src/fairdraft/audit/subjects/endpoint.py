"""An OpenAI-compatible completions endpoint, judged by the logprobs that it returns.

Axes: N tokens of a batch, k tokens listed beside each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairdraft.audit.completions import Completion
from fairdraft.audit.drafting import DraftWatch
from fairdraft.audit.openai import EndpointClient, EndpointError, Patience, checked_url
from fairdraft.audit.prompts import PROMPTS
from fairdraft.audit.subject import Batch, InvalidSubject, SubjectInfo
from fairdraft.audit.subjects.answers import AnswerChecks, Identity
from fairdraft.audit.subjects.listing import Rescorer, score_completions

if TYPE_CHECKING:
    from fairdraft.models import CausalLM

__all__ = ["EndpointRequest", "EndpointSubject"]

# numbers travel as float32 and the rest cell has a floor
LOGPROBS_EPS0 = 1e-5
RESCORED_EPS0 = 0.005
# what vLLM and its relatives understand besides the common fields
_EXTENSION = {
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "ignore_eos": True,
    "return_tokens_as_token_ids": True,
    "return_token_ids": True,
}
# a server that is down should be reported soon
_PROBE_ATTEMPTS = 3
_REFUSALS = (400, 404, 415, 422)


@dataclass(frozen=True)
class EndpointRequest:
    """What every request asks for; text i has prompt i (in turns) and seed `seed` + i.

    Attributes:
        num_logprobs: k.
        max_tokens: Tokens a text.
        seed: Of text 0.
        sampling: Sampler parameters that are to be something else than plain sampling at
            temperature 1, by their names in the request. Such an audit is invalid: logprobs are
            the model's before temperature and filters.
        prompts: Texts to continue.
    """

    num_logprobs: int = 20
    max_tokens: int = 64
    seed: int = 0
    sampling: tuple[tuple[str, float], ...] = ()
    prompts: Sequence[str] = PROMPTS

    def __post_init__(self) -> None:
        for name in ("num_logprobs", "max_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} must be at least 1")
        if self.seed < 0:
            raise ValueError(f"seed = {self.seed} must be at least 0: some servers read -1 as none")
        if not self.prompts or not all(self.prompts):
            raise ValueError("prompts must hold at least one text, and none that is empty")

    def prompt(self, index: int) -> str:
        """What text `index` continues."""
        return self.prompts[index % len(self.prompts)]

    def body(self, model: str, index: int, *, extended: bool) -> dict[str, Any]:
        """The JSON of text `index`, with vLLM's fields or without."""
        body = {
            "model": model,
            "prompt": self.prompt(index),
            "max_tokens": self.max_tokens,
            "temperature": 1.0,
            "top_p": 1.0,
            "n": 1,
            "seed": self.seed + index,
            "logprobs": self.num_logprobs,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
        }
        return body | _EXTENSION if extended else body


class EndpointSubject:
    """Asks a server for texts, many at once, and scores them in the order of their numbers.

    No text is ever left out, since what fails might depend on what was sampled: a request is
    repeated unchanged, and if that does not help the audit ends there.

    Args:
        url: Base URL, the one that ends in /v1.
        model: Name of the model there; None takes the only one served.
        request: What to ask for.
        speculative: True if the server is said to speculate, False if it is said not to; None
            takes it as it comes.
        target: A local copy of the model: its laws then replace the returned logprobs.
        draft: A local copy of the draft model: families that need its law are then covered.
        control: The same model served without speculation; a rescored audit begins there.
        sampler: How the server samples, if known; see `SubjectInfo`.
        api_key: Sent as a bearer token; never recorded.
        patience: How long to wait for answers.
        concurrency: Requests at once.
        texts_per_batch: Texts between two looks at the evidence.

    Raises:
        ValueError: If an argument cannot be used.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        request: EndpointRequest | None = None,
        *,
        speculative: bool | None = None,
        target: CausalLM | None = None,
        draft: CausalLM | None = None,
        control: EndpointSubject | None = None,
        sampler: str = "unknown",
        api_key: str | None = None,
        patience: Patience | None = None,
        concurrency: int = 16,
        texts_per_batch: int = 32,
    ) -> None:
        for name, value in (("concurrency", concurrency), ("texts_per_batch", texts_per_batch)):
            if value < 1:
                raise ValueError(f"{name} = {value} must be at least 1")
        self.url = checked_url(url)
        self.model = model
        self.request = request or EndpointRequest()
        self.speculative = speculative
        self.rescorer = None if target is None and draft is None else Rescorer(target, draft)
        self.control = control
        self.sampler = sampler
        self.patience = patience or Patience()
        self.concurrency = concurrency
        self.texts_per_batch = texts_per_batch
        self._api_key = api_key

    @property
    def info(self) -> SubjectInfo:
        """What is recorded about the subject."""
        rescorer = self.rescorer
        has_target = rescorer is not None and rescorer.target is not None
        speculation = {None: "not said", True: "said to be on", False: "said to be off"}
        return SubjectInfo(
            kind="endpoint",
            name=f"{self.model or 'the model served'} at {self.url}",
            parameters={
                "url": self.url,
                "model": self.model,
                "temperature": 1.0,
                "top_p": 1.0,
                **dict(self.request.sampling),
                "num_logprobs": self.request.num_logprobs,
                "max_tokens": self.request.max_tokens,
                "seed": self.request.seed,
                "num_prompts": len(self.request.prompts),
                "concurrency": self.concurrency,
                "texts_per_batch": self.texts_per_batch,
                "speculation": speculation[self.speculative],
                **(rescorer.parameters if rescorer is not None else {}),
            },
            scoring="rescored" if has_target else "logprobs",
            default_eps0=RESCORED_EPS0 if has_target else LOGPROBS_EPS0,
            # drafts are not seen from outside; the server's counters are asked instead
            is_speculative=False,
            sampler=self.sampler,
        )

    def batches(self, cursor: Any = None) -> Iterator[Batch]:
        """Yields scored texts, `texts_per_batch` at a time.

        It ends when the server stops answering, with a note that says so. A batch that is not
        whole by then does not count: the same requests give it again.

        Raises:
            InvalidSubject: If the server cannot be reached at all, or what it answers cannot be
                scored.
        """
        _check_sampling(dict(self.request.sampling))
        first = 0 if cursor is None else int(cursor["next"])
        client = EndpointClient(
            self.url,
            api_key=self._api_key,
            patience=self.patience,
            concurrency=self.concurrency,
        )
        with client:
            try:
                sitting = self._begin(client, first, Identity.read(cursor))
            except EndpointError as error:
                if cursor is None:
                    raise InvalidSubject(f"the endpoint cannot be audited: {_why(error)}") from None
                yield _last_batch(cursor, error)
                return
            yield from sitting

    def _begin(
        self, client: EndpointClient, first: int, identity: Identity | None
    ) -> Iterator[Batch]:
        model = self.model or _only_model(client)
        extended, answer = self._probe(client, model, first)
        checks = AnswerChecks(identity)
        probe = checks.read(answer, self.request.num_logprobs)
        watch = DraftWatch(model, self.speculative, client.metrics())
        answers = self._answers(client, model, first, extended)
        return self._sitting(client, first, answers, checks, watch, self._about(extended, probe))

    def _sitting(
        self,
        client: EndpointClient,
        first: int,
        answers: Iterator[Any],
        checks: AnswerChecks,
        watch: DraftWatch,
        notes: list[str],
    ) -> Iterator[Batch]:
        while True:
            completions = []
            assert checks.identity is not None
            cursor = {"next": first, "identity": checks.identity.document()}
            try:
                for _ in range(self.texts_per_batch):
                    completions.append(checks.read(next(answers), self.request.num_logprobs))
            except EndpointError as error:
                yield _last_batch(cursor, error)
                return
            prompts = [self.request.prompt(first + i) for i in range(len(completions))]
            tokens = score_completions(first, completions, self.rescorer, prompts)
            first += len(completions)
            notes += [f"some requests were asked again after: {name}" for name in client.troubles]
            notes += watch.look(client.metrics(), len(tokens))
            yield Batch(tokens, {**cursor, "next": first}, tuple(notes))
            notes = []

    # one short request, which tells whether the server knows vLLM's fields
    def _probe(self, client: EndpointClient, model: str, index: int) -> tuple[bool, Any]:
        def ask(extended: bool) -> Any:
            body = self._body(model, index, extended) | {"max_tokens": 1}
            return client.post("/completions", body, attempts=_PROBE_ATTEMPTS).result()

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

    def _body(self, model: str, index: int, extended: bool) -> dict[str, Any]:
        body = self.request.body(model, index, extended=extended)
        if self.rescorer is not None:
            body["prompt"] = self.rescorer.encode(body["prompt"])
        return body

    def _answers(
        self, client: EndpointClient, model: str, first: int, extended: bool
    ) -> Iterator[Any]:
        waiting: deque[Future[Any]] = deque()
        index = first
        while True:
            # ahead by two rounds, so that the slowest text does not idle the server
            while len(waiting) < 2 * self.concurrency:
                body = self._body(model, index, extended)
                waiting.append(client.post("/completions", body))
                index += 1
            yield waiting.popleft().result()

    def _about(self, extended: bool, probe: Completion) -> list[str]:
        notes = []
        if not extended:
            notes.append(
                "the server refuses vLLM's request fields: its own defaults of top_k, min_p and "
                "repetition_penalty are taken to be off, and texts may end early"
            )
        if not probe.has_ids:
            notes.append("the server reports token strings; a token's id is a digest of its string")
        if self.rescorer is None or self.rescorer.draft is None:
            notes.append(
                "without --draft no family that needs the draft's law is covered: about a bug "
                "that moves mass between tokens by q/p, this verdict says little"
            )
        return notes


def _check_sampling(sampling: dict[str, float]) -> None:
    plain = {"temperature": 1, "top_p": 1, "repetition_penalty": 1}
    for name, value in sampling.items():
        if value != plain.get(name, 0) and not (name == "top_k" and value < 0):
            raise InvalidSubject(
                f"{name} = {value:g}: a server's logprobs are the model's before temperature, "
                "filters and penalties, so tokens can be held against them at temperature 1 "
                "without filters and penalties only; leave it away"
            )


def _only_model(client: EndpointClient) -> str:
    served = client.get("/models", attempts=2)
    names = [entry.get("id") for entry in served.get("data", [])]
    if len(names) != 1:
        raise InvalidSubject(
            f"the server offers {', '.join(map(str, names)) or 'no model'}; name one with --model"
        )
    return str(names[0])


def _why(error: EndpointError) -> str:
    hints = {
        401: "; set FAIRDRAFT_API_KEY to a key that it takes",
        403: "; set FAIRDRAFT_API_KEY to a key that it takes",
        404: "; the URL should be the one that ends in /v1, and --model one of its models",
    }
    return f"{error}{hints.get(error.status or 0, '')}"


# no token: had the last whole batch decided anything, the audit would have ended with it
def _last_batch(cursor: dict[str, Any], error: EndpointError) -> Batch:
    note = (
        f"the endpoint stopped answering after {cursor['next']:,} texts, which count: "
        f"{_why(error)}; the audit can go on from there"
    )
    return Batch(score_completions(0, []), cursor, (note,))
