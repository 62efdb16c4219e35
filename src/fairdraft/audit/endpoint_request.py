"""What an audit asks a completions endpoint for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fairdraft.audit.prompts import PROMPTS
from fairdraft.audit.subject import InvalidSubject

__all__ = ["EndpointRequest"]

# what vLLM and its relatives understand besides the common fields
_EXTENSION = {
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "ignore_eos": True,
    "return_tokens_as_token_ids": True,
    "return_token_ids": True,
}


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
        is_greedy: Temperature 0, for the exact-match mode.
    """

    num_logprobs: int = 20
    max_tokens: int = 64
    seed: int = 0
    sampling: tuple[tuple[str, float], ...] = ()
    prompts: Sequence[str] = PROMPTS
    is_greedy: bool = False

    def __post_init__(self) -> None:
        for name in ("num_logprobs", "max_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} must be at least 1")
        if self.seed < 0:
            raise ValueError(f"seed = {self.seed} must be at least 0: some servers read -1 as none")
        if not self.prompts or not all(self.prompts):
            raise ValueError("prompts must hold at least one text, and none that is empty")

    def check_sampling(self) -> None:
        """Refuses sampler parameters that logprobs know nothing of.

        Raises:
            InvalidSubject: If one is not that of plain sampling at temperature 1.
        """
        plain = {"temperature": 1, "top_p": 1, "repetition_penalty": 1}
        for name, value in self.sampling:
            if value != plain.get(name, 0) and not (name == "top_k" and value < 0):
                raise InvalidSubject(
                    f"{name} = {value:g}: a server's logprobs are the model's before temperature, "
                    "filters and penalties, so tokens can be held against them at temperature 1 "
                    "without filters and penalties only; leave it away"
                )

    def prompt(self, index: int) -> str:
        """What text `index` continues."""
        return self.prompts[index % len(self.prompts)]

    def body(self, model: str, index: int, *, extended: bool) -> dict[str, Any]:
        """The JSON of text `index`, with vLLM's fields or without."""
        body = {
            "model": model,
            "prompt": self.prompt(index),
            "max_tokens": self.max_tokens,
            "temperature": 0.0 if self.is_greedy else 1.0,
            "top_p": 1.0,
            "n": 1,
            "seed": self.seed + index,
            "logprobs": self.num_logprobs,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
        }
        return body | _EXTENSION if extended else body
