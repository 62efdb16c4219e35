"""What `speculative_config="auto"` may be told."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from fairdraft.engine.checks import check_integer, check_number
from fairdraft.engine.choice.candidates import Candidate, named
from fairdraft.engine.config import SpeculativeConfig

AUTO = "auto"


#: keys of a candidate that say K themselves, or let in a rule that is not exact
_FIXED = ("speculative_token_tree", "synthetic_acceptance_rates", "allow_lossy")


@dataclass(frozen=True)
class AutoConfig:
    """How to choose a speculator.

    Attributes:
        candidates: Dictionaries of speculators to choose from, each without or with K; None for
            whatever the target has at hand. Plain decoding is always one of the choices.
        model: One candidate more, a draft model or the folder of a head.
        num_speculative_tokens: The largest K that is considered, of candidates that name none.
        budget_seconds: How long rounds are measured, loading and warm-up apart.
        temperature: At which acceptance is measured; choose that of the requests to come.
        draft_sample_method, rejection_sample_method: Of every candidate; see `SpeculativeConfig`.
    """

    candidates: Sequence[Mapping[str, Any]] | None = None
    model: Any = None
    num_speculative_tokens: int = 6
    budget_seconds: float = 2.0
    temperature: float = 1.0
    draft_sample_method: str = "probabilistic"
    rejection_sample_method: str = "standard"

    def __post_init__(self) -> None:
        if check_integer("num_speculative_tokens", self.num_speculative_tokens) < 1:
            raise ValueError(
                f"num_speculative_tokens={self.num_speculative_tokens!r}: must be at least 1"
            )
        if not 0.0 < check_number("budget_seconds", self.budget_seconds) < math.inf:
            raise ValueError(
                f"budget_seconds={self.budget_seconds!r}: must be above 0; for no measurement name "
                "a method"
            )
        if not 0.0 <= check_number("temperature", self.temperature) < math.inf:
            raise ValueError(
                f"temperature={self.temperature!r}: must be a finite number, at least 0"
            )
        # refused here rather than after the target is loaded
        self.settled({"method": "ngram"}, 1)
        self.asked()

    def asked(self) -> list[Candidate]:
        """The candidates that the caller named.

        Raises:
            ValueError: If one of them is no `speculative_config`.
        """
        given = self.candidates or ()
        if isinstance(given, str | Mapping) or not all(isinstance(one, Mapping) for one in given):
            raise ValueError(
                f"candidates={self.candidates!r}: must be a list of dictionaries, such as "
                "[{'method': 'ngram'}]"
            )
        for one in given:
            if one.get("method") in ("prediction", AUTO):
                raise ValueError(
                    f"candidates: method {one['method']!r} is none to choose: 'prediction' drafts "
                    "what a request predicts, and 'auto' is the choice itself; leave it out"
                )
            for key in _FIXED:
                if one.get(key) not in (None, False):
                    raise ValueError(
                        f"candidates: {key}={one[key]!r} leaves method 'auto' no K to choose, or "
                        "changes the text's law; name that speculator in place of 'auto'"
                    )
        more = [] if self.model is None else [{"model": self.model}]
        return named([*given, *more], is_asked=True)

    def settled(self, config: Mapping[str, Any], num_drafts: int) -> SpeculativeConfig:
        """A candidate's configuration with K and what every candidate shares."""
        shared = {
            "draft_sample_method": self.draft_sample_method,
            "rejection_sample_method": self.rejection_sample_method,
        }
        if "rule" in config:
            del shared["rejection_sample_method"]
        return SpeculativeConfig.from_dict(
            {**shared, **config, "num_speculative_tokens": num_drafts}
        )


def read_config(config: Any) -> SpeculativeConfig | AutoConfig | None:
    """Reads `speculative_config`: "auto", a dictionary, what was read already, or None.

    Raises:
        ValueError: If a key is unknown or a value is out of range.
    """
    if config is None or isinstance(config, SpeculativeConfig | AutoConfig):
        return config
    if config == AUTO:
        return AutoConfig()
    if not isinstance(config, Mapping) or config.get("method") != AUTO:
        return SpeculativeConfig.from_dict(config)
    known = [field.name for field in fields(AutoConfig)]
    given = {key: value for key, value in config.items() if key != "method"}
    for key in given:
        if key not in known:
            raise ValueError(
                f"speculative_config: method 'auto' does not know {key!r}; known keys: "
                f"{', '.join(known)}; put others into 'candidates'"
            )
    return AutoConfig(**given)
