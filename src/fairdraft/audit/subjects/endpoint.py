"""An OpenAI-compatible completions endpoint, judged by the logprobs that it returns.

Axes: N tokens of a batch, k tokens listed beside each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fairdraft.audit.conversation import Conversation, reason
from fairdraft.audit.drafting import DraftWatch
from fairdraft.audit.endpoint_request import EndpointRequest
from fairdraft.audit.openai import EndpointClient, EndpointError, Patience, checked_url
from fairdraft.audit.subject import Batch, InvalidSubject, SubjectInfo
from fairdraft.audit.subjects.answers import Identity
from fairdraft.audit.subjects.listing import Rescorer, score_completions

if TYPE_CHECKING:
    from fairdraft.models import CausalLM

__all__ = ["EndpointRequest", "EndpointSubject"]

# numbers travel as float32 and the rest cell has a floor
LOGPROBS_EPS0 = 1e-5
RESCORED_EPS0 = 0.005


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
        self.request.check_sampling()
        first = 0 if cursor is None else int(cursor["next"])
        with self.client() as client:
            try:
                talk = self.talk(client, first, Identity.read(cursor))
            except EndpointError as error:
                if cursor is None:
                    raise InvalidSubject(
                        f"the endpoint cannot be audited: {reason(error)}"
                    ) from None
                yield _last_batch(cursor, error)
                return
            yield from self._batches(talk, first)

    def client(self) -> EndpointClient:
        """A client of the server; close it."""
        return EndpointClient(
            self.url,
            api_key=self._api_key,
            patience=self.patience,
            concurrency=self.concurrency,
        )

    def talk(
        self, client: EndpointClient, first: int = 0, identity: Identity | None = None
    ) -> Conversation:
        """Begins to ask for texts, from number `first` on.

        Raises:
            EndpointError: If the server does not answer.
            InvalidSubject: If it is another than `identity`, or its answer cannot be scored.
        """
        encode = None if self.rescorer is None else self.rescorer.encode
        return Conversation(client, self.request, self.model, first, identity, encode)

    def _batches(self, talk: Conversation, first: int) -> Iterator[Batch]:
        watch = DraftWatch(talk.model, self.speculative, talk.client.metrics())
        notes = self._about(talk)
        while True:
            completions = []
            cursor = {"next": first, "identity": talk.identity.document()}
            try:
                for _ in range(self.texts_per_batch):
                    completions.append(talk.next())
            except EndpointError as error:
                yield _last_batch(cursor, error)
                return
            prompts = [self.request.prompt(first + i) for i in range(len(completions))]
            tokens = score_completions(first, completions, self.rescorer, prompts)
            first += len(completions)
            notes += talk.troubles() + watch.look(talk.client.metrics(), len(tokens))
            yield Batch(tokens, {**cursor, "next": first}, tuple(notes))
            notes = []

    def _about(self, talk: Conversation) -> list[str]:
        notes = talk.about()
        if self.rescorer is None or self.rescorer.draft is None:
            notes.append(
                "without --draft no family that needs the draft's law is covered: about a bug "
                "that moves mass between tokens by q/p, this verdict says little"
            )
        return notes


# no token: had the last whole batch decided anything, the audit would have ended with it
def _last_batch(cursor: dict[str, Any], error: EndpointError) -> Batch:
    note = (
        f"the endpoint stopped answering after {cursor['next']:,} texts, which count: "
        f"{reason(error)}; the audit can go on from there"
    )
    return Batch(score_completions(0, []), cursor, (note,))
