"""What a caller may ask of one request, checked when it is written down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairdraft.engine.checks import check_integer, check_number
from fairdraft.engine.processing.checks import check_processing
from fairdraft.engine.processing.grammar import StructuredOutputsParams
from fairdraft.noise import parse_noise_key
from fairdraft.ops.arithmetic import MAX_TEMPERATURE

MAX_SAMPLES = 1 << 16

_PROCESSING = (
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"),
    *("allowed_token_ids", "bad_words", "bad_words_ids", "no_repeat_ngram_size", "min_tokens"),
    *("logits_processors", "structured_outputs"),
)


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one request are drawn and where they stop; vLLM's names and defaults.

    Every parameter gives the same law with speculation as without: each row is processed with the
    prompt, the output and the drafts before it. `engine.processing.order` states the order.

    Attributes:
        n: Samples drawn for the prompt, 1 to 65,536. They share the key and differ by its sample
            field.
        temperature: 0 to 1e8. Below 1e-5 the request is greedy.
        top_p: In (0, 1]; 1 keeps every token.
        top_k: Tokens kept; 0 or -1 keeps every token.
        min_p: In [0, 1]; tokens less probable than `min_p` times the most probable one are dropped.
        seed: Any Python int, or None for one from the operating system. Every int is a seed,
            -1 too. Mixed with the prompt: one seed on many prompts shares no noise.
        noise_key: 16 hex digits as a response returned them; replays it. In place of `seed`.
        max_tokens: Most tokens to emit, at least 1; None for as many as the context holds.
        stop: Strings that end the text. The token that completes one is the last token.
        stop_token_ids: Ids that end the sequence, besides the model's own end of sequence.
        ignore_eos: Go on after the model's end of sequence; `stop_token_ids` still stop.
        include_stop_str_in_output: Keep the stop string (or the text of the stop token).
        logprobs: None, or how many most probable tokens to report beside each emitted one.
            `LLM(logprobs_mode=)` says of which logits.
        num_speculative_tokens: Most drafts a round for this request; None for the engine's own
            number, 0 for no speculation. Not in vLLM.
        prediction: What the output will mostly be, as text or token ids: drafts follow it. Needs
            `speculative_config={"method": "prediction"}`. OpenAI's name; not in vLLM.
        prompt_logprobs: None, or how many most probable tokens to report beside each token of the
            prompt but the first; always of the raw logits.
        presence_penalty: -2 to 2, subtracted from logits of tokens in the output; 0 is off.
        frequency_penalty: -2 to 2, subtracted once for each time the token is in the output.
        repetition_penalty: Above 0. Logits of tokens in prompt or output are divided by it if they
            are positive and multiplied otherwise; 1 is off.
        logit_bias: Token id to a number that is added to its logit.
        allowed_token_ids: The only tokens that may come; None allows all.
        bad_words: Words that may not come up in the output, with a space before them or without.
        bad_words_ids: Token sequences that may not come up; as in Hugging Face they may begin in
            the prompt. Not in vLLM.
        no_repeat_ngram_size: No n-gram of this many tokens comes twice in prompt and output, as in
            Hugging Face; 0 is off. Not in vLLM.
        min_tokens: Tokens before the model's end of sequence or one of `stop_token_ids` may come,
            `ignore_eos` or not, and before a stop string ends the text.
        logits_processors: Custom processors, called as processor(input_ids, scores); see
            `engine.processing.custom`.
        structured_outputs: JSON schema, regular expression, choice or grammar that the output must
            follow; needs the extra `grammar`.

    Raises:
        ValueError: If a value is out of range; the message names it and the way out.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    noise_key: str | None = None
    max_tokens: int | None = 16
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    logprobs: int | None = None
    num_speculative_tokens: int | None = None
    prediction: str | Sequence[int] | None = None
    prompt_logprobs: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    bad_words_ids: Sequence[Sequence[int]] | None = None
    no_repeat_ngram_size: int = 0
    min_tokens: int = 0
    logits_processors: Sequence[Any] | None = None
    structured_outputs: StructuredOutputsParams | None = None

    def __post_init__(self) -> None:
        self._check_law()
        self._check_noise()
        self._check_lengths()
        self._check_stops()
        check_processing(self)

    def _check_law(self) -> None:
        temperature = check_number("temperature", self.temperature)
        if not 0.0 <= temperature <= MAX_TEMPERATURE:
            raise ValueError(
                f"temperature={self.temperature!r}: must be a finite number from 0 (greedy) "
                f"to {MAX_TEMPERATURE:g}"
            )
        if not 0.0 < check_number("top_p", self.top_p) <= 1.0:
            raise ValueError(
                f"top_p={self.top_p!r}: must be above 0 and at most 1; 1 keeps every token, "
                "temperature=0 keeps only the best"
            )
        if not 0.0 <= check_number("min_p", self.min_p) <= 1.0:
            raise ValueError(f"min_p={self.min_p!r}: must be from 0 (off) to 1")
        if check_integer("top_k", self.top_k) < -1:
            raise ValueError(
                f"top_k={self.top_k!r}: must be at least 1, or 0 (or -1) to turn it off"
            )

    def _check_noise(self) -> None:
        if not 1 <= check_integer("n", self.n) <= MAX_SAMPLES:
            raise ValueError(f"n={self.n!r}: must be from 1 to {MAX_SAMPLES}")
        if self.seed is not None:
            check_integer("seed", self.seed, hint="; or None for a random key")
        if self.noise_key is None:
            return
        if self.seed is not None:
            raise ValueError(
                f"seed={self.seed!r} and noise_key={self.noise_key!r} are both given: a noise key "
                "replaces the seed; leave one out"
            )
        parse_noise_key(self.noise_key)

    def _check_lengths(self) -> None:
        if self.max_tokens is not None and check_integer("max_tokens", self.max_tokens) < 1:
            raise ValueError(
                f"max_tokens={self.max_tokens!r}: must be at least 1, or None for as many as the "
                "context holds"
            )
        for name, kind in (("logprobs", "emitted"), ("prompt_logprobs", "prompt's")):
            value = getattr(self, name)
            if value is not None and check_integer(name, value) < 0:
                raise ValueError(
                    f"{name}={value!r}: must be at least 0 (only the {kind} token), or None"
                )
        k = self.num_speculative_tokens
        if k is not None and check_integer("num_speculative_tokens", k) < 0:
            raise ValueError(f"num_speculative_tokens={k!r}: must be at least 0 (no speculation)")

    def _check_stops(self) -> None:
        for string in self.stop_strings:
            if not isinstance(string, str) or not string:
                raise ValueError(f"stop={self.stop!r}: each stop string must be a non-empty str")
        for token_id in self.stop_token_ids or ():
            if check_integer("stop_token_ids", token_id) < 0:
                raise ValueError(f"stop_token_ids holds {token_id!r}: token ids are at least 0")

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings as a tuple, empty if there are none."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def has_filter(self) -> bool:
        """Whether top-k, top-p or min-p drops anything."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    @property
    def processing(self) -> dict[str, Any]:
        """What changes the rows besides temperature and filters: the parameters that are on."""
        found = {name: getattr(self, name) for name in _PROCESSING}
        if self.repetition_penalty == 1.0:
            del found["repetition_penalty"]
        return {name: value for name, value in found.items() if value}
