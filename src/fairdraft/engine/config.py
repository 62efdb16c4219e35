"""The `speculative_config` dictionary, with vLLM's keys."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fairdraft.engine.checks import check_integer
from fairdraft.ops.verify import Rule
from fairdraft.speculators.heads import is_head

METHODS = ("draft_model", "ngram", "eagle3")
DRAFT_SAMPLE_METHODS = ("probabilistic", "greedy")
#: names of embedded heads, and what `pocket.path` calls them
POCKET_HEADS = {"pocket-eagle3": "eagle3"}
#: vLLM's names to ours
RULES: dict[str, Rule] = {"standard": "token", "block": "block"}


@dataclass(frozen=True)
class SpeculativeConfig:
    """Which speculator proposes, and how many tokens a round.

    Attributes:
        method: "draft_model", "ngram" or "eagle3"; None reads it from `model`.
        model: Of the draft model: a path, a name, or a loaded `PreTrainedModel`. Of a head: its
            folder, or "pocket-eagle3".
        tokenizer: Of a loaded draft model, so that its vocabulary can be compared; optional.
        num_speculative_tokens: Most drafts a round, K, at least 1.
        draft_sample_method: "probabilistic" samples drafts at the request's temperature and
            filters; "greedy" proposes the draft's best token, a point mass that uses no noise.
        rejection_sample_method: "standard" tests draft by draft (rule `token`); "block" tests whole
            prefixes, and accepts more where several drafts a round are sampled.
        prompt_lookup_min: Shortest suffix that prompt lookup searches for, in tokens.
        prompt_lookup_max: Longest such suffix.
        check_vocabulary: False skips the comparison of the two tokenizers. The output stays
            exact; drafts of a foreign vocabulary are only rarely accepted.
        process_draft_logits: Applies a request's processors (penalties, bias, masks) to the draft's
            logits as well, as filters always are: more drafts stand, at the cost of processing
            each. The output's law is the same. Not in vLLM.
    """

    method: str | None = None
    model: Any = None
    tokenizer: Any = None
    num_speculative_tokens: int = 4
    draft_sample_method: str = "probabilistic"
    rejection_sample_method: str = "standard"
    prompt_lookup_min: int | None = None
    prompt_lookup_max: int | None = None
    check_vocabulary: bool = True
    process_draft_logits: bool = False

    def __post_init__(self) -> None:
        if self.method is None:
            object.__setattr__(self, "method", infer_method(self.model))
        if self.method not in METHODS:
            raise ValueError(
                f"speculative_config: method={self.method!r} is not known; use one of "
                f"{', '.join(METHODS)}"
            )
        check_integer("num_speculative_tokens", self.num_speculative_tokens)
        if not 1 <= self.num_speculative_tokens < 1 << 16:
            raise ValueError(
                f"num_speculative_tokens={self.num_speculative_tokens!r}: must be from 1 to 65535; "
                "for no speculation leave speculative_config out"
            )
        if self.draft_sample_method not in DRAFT_SAMPLE_METHODS:
            raise ValueError(
                f"draft_sample_method={self.draft_sample_method!r}: must be one of "
                f"{', '.join(DRAFT_SAMPLE_METHODS)}"
            )
        if self.rejection_sample_method not in RULES:
            raise ValueError(
                f"rejection_sample_method={self.rejection_sample_method!r}: must be one of "
                f"{', '.join(RULES)}; both keep the target's law"
            )
        if self.method == "ngram":
            self._settle_lookup()
        else:
            self._check_model()

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> SpeculativeConfig:
        """Reads vLLM's dictionary; a key it does not know is refused by name.

        Raises:
            ValueError: If a key is unknown or a value is out of range.
        """
        if not isinstance(config, Mapping):
            raise ValueError(
                f"speculative_config must be a dict such as {{'method': 'ngram'}}, not {config!r}"
            )
        known = [field.name for field in fields(cls)]
        for key in config:
            if key in known:
                continue
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(known)}"
            raise ValueError(f"speculative_config: unknown key {key!r}; {hint}")
        return cls(**config)

    @property
    def rule(self) -> Rule:
        """The verification rule, as `ops.verify_chain` names it."""
        return RULES[self.rejection_sample_method]

    def _settle_lookup(self) -> None:
        longest, shortest = self.prompt_lookup_max, self.prompt_lookup_min
        if longest is None:
            longest = max(5, shortest or 0)
        if shortest is None:
            shortest = min(2, longest)
        check_integer("prompt_lookup_min", shortest)
        check_integer("prompt_lookup_max", longest)
        if not 1 <= shortest <= longest:
            raise ValueError(
                f"prompt_lookup_min={shortest}, prompt_lookup_max={longest}: must satisfy "
                "1 <= min <= max"
            )
        object.__setattr__(self, "prompt_lookup_min", shortest)
        object.__setattr__(self, "prompt_lookup_max", longest)

    def _check_model(self) -> None:
        takes_head = self.method == "eagle3"
        if self.model is None:
            needed = "the folder of a head" if takes_head else "a path, a name or a loaded model"
            raise ValueError(
                f"speculative_config: method {self.method!r} needs 'model', {needed}; for drafts "
                "without a model use method 'ngram'"
            )
        if takes_head and not isinstance(self.model, str | Path):
            raise ValueError(
                f"speculative_config: method {self.method!r} takes the folder of a head, not a "
                f"{type(self.model).__name__}"
            )
        if takes_head and self.tokenizer is not None:
            raise ValueError(
                "speculative_config: 'tokenizer' belongs to method 'draft_model'; a head speaks "
                "its target's ids"
            )
        for key in ("prompt_lookup_min", "prompt_lookup_max"):
            if getattr(self, key) is not None:
                raise ValueError(
                    f"speculative_config: {key}={getattr(self, key)!r} belongs to method 'ngram', "
                    f"not to {self.method!r}"
                )


def infer_method(model: Any) -> str:
    """The method that a model stands for, by its name or by what its configuration holds.

    Args:
        model: As `SpeculativeConfig.model`.
    """
    if not isinstance(model, str | Path):
        return "draft_model"
    if str(model) == "ngram":
        return "ngram"
    if str(model) in POCKET_HEADS or is_head(Path(model).expanduser()):
        return "eagle3"
    return "draft_model"
