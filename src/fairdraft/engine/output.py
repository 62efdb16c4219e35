"""What a request gives back."""

from __future__ import annotations

from dataclasses import dataclass, field

from fairdraft.engine.logprobs import Logprob


@dataclass
class CompletionOutput:
    """One sample of a request; from `LLM.stream`, what is new since the last event.

    Attributes:
        index: Which of the n samples.
        text: The text, without the stop string unless it was asked to stay.
        token_ids: Emitted ids; the token that stopped the sequence is the last one.
        token_sources: For each token "draft" (accepted), "residual" (replaced a rejected draft),
            "bonus" (after the last draft) or "target" (a round without drafts).
        logprobs: For each token {token_id: Logprob}, or None; see `LLM(logprobs_mode=)`.
        cumulative_logprob: Sum of the emitted tokens' logprobs so far, or None.
        finish_reason: "stop", "length", "error", "abort", or None while it runs.
        stop_reason: The stop string or the stop token id that ended it; None for the model's own
            end of sequence.
        pieces: Only in events: the text cut by origin, as (text, source); joined it is `text`.
    """

    index: int
    text: str
    token_ids: list[int]
    token_sources: list[str]
    logprobs: list[dict[int, Logprob]] | None = None
    cumulative_logprob: float | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    pieces: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class RequestMetrics:
    """Counts and times of one request, summed over its samples.

    Drafts count up to the last token kept: what was drafted after a stop has no outcome. Seconds
    are the engine's, while the request had a row; neighbors in the batch share them.

    Attributes:
        rounds: Propose, verify and commit cycles; each costs one row of a target forward.
        num_emitted_tokens: Tokens of all samples.
        num_draft_tokens: Drafts that were verified.
        num_accepted_tokens: Drafts that stood and were emitted.
        drafted_per_position: Drafts verified at each place of the block, from the first.
        accepted_per_position: Drafts that stood at each place.
        accepted_prediction_tokens: Tokens of `SamplingParams.prediction` that appeared in the
            output, in step with it; None without a prediction. As OpenAI reports them.
        rejected_prediction_tokens: Those that did not; likewise.
        num_preemptions: How often its rows were dropped and prefilled again.
        draft_seconds: In the speculator.
        target_seconds: In the target's forward, prefill included.
        verify_seconds: In filters and verification.
        prefill_seconds: Of `target_seconds`, in the prompts of requests that came in meanwhile.
        total_seconds: Wall time from the first round to the end.
        lossy: Name of the engine's rule if its text does not follow the target, else None.
    """

    rounds: int = 0
    num_emitted_tokens: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    drafted_per_position: list[int] = field(default_factory=list)
    accepted_per_position: list[int] = field(default_factory=list)
    accepted_prediction_tokens: int | None = None
    rejected_prediction_tokens: int | None = None
    num_preemptions: int = 0
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
    verify_seconds: float = 0.0
    prefill_seconds: float = 0.0
    total_seconds: float = 0.0
    lossy: str | None = None

    @property
    def target_passes(self) -> int:
        """Target forwards after the prompt: one a round."""
        return self.rounds

    @property
    def target_passes_saved(self) -> int:
        """Forwards that plain decoding would have needed on top."""
        return self.num_emitted_tokens - self.rounds

    @property
    def acceptance_length(self) -> float:
        """Mean tokens emitted a round, the bonus included; 0 before the first round."""
        return self.num_emitted_tokens / self.rounds if self.rounds else 0.0

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over drafted; None if nothing was drafted."""
        if not self.num_draft_tokens:
            return None
        return self.num_accepted_tokens / self.num_draft_tokens

    @property
    def acceptance_rate_per_position(self) -> list[float | None]:
        """Accepted over drafted at each place of the block; None where nothing was drafted."""
        pairs = zip(self.accepted_per_position, self.drafted_per_position, strict=True)
        return [accepted / drafted if drafted else None for accepted, drafted in pairs]


@dataclass
class RequestOutput:
    """The state of one request: final from `LLM.generate`, an event from `LLM.stream`.

    Attributes:
        request_id: The engine's name for it.
        prompt: The prompt's text, or None if it came as ids.
        prompt_token_ids: The prompt's ids.
        outputs: One `CompletionOutput` a sample; in events only those with news.
        finished: Whether every sample has ended.
        noise_key: 16 hex digits; `SamplingParams(noise_key=...)` replays the response.
        metrics: Counts and times; in events only in the last one.
        error: The message of a request that failed, or None.
        prompt_logprobs: For each token of the prompt {token_id: Logprob} of the raw logits, None
            for the first; None if not asked for.
        lossy: Name of the engine's rule ("typical", "threshold", "synthetic") if the text does not
            follow the target, else None.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    noise_key: str
    metrics: RequestMetrics | None = None
    error: str | None = None
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    lossy: str | None = None


class GenerationInterrupted(KeyboardInterrupt):
    """Ctrl-C during generation; `outputs` holds what every request had by then."""

    def __init__(self, outputs: list[RequestOutput]) -> None:
        super().__init__("generation was interrupted; the partial outputs are in .outputs")
        self.outputs = outputs
