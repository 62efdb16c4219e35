"""What an audit is asked to decide."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EvidenceSettings"]


@dataclass(frozen=True)
class EvidenceSettings:
    """Limits and error rates, set before the first token.

    Attributes:
        eps: Largest averaged total variation over a family's cells that is let pass.
        alpha: Probability of a false FAIL, whenever one stops.
        delta: Probability of a false PASS, whenever one stops.
        eps0: Total variation by which a token's law may differ from the scored one without being
            wrong: numerics of another implementation. 0 where the decoder's own logits score.
        sampler: "gumbel", "race", "inverse_cdf" or any other word: which coupled laws can occur.
        rule: "token", "block", "common_noise" or "tree", None if unknown: what the diagnostic
            families may assume.

    Raises:
        ValueError: If a number is outside its range.
    """

    eps: float = 0.01
    alpha: float = 1e-3
    delta: float = 0.01
    eps0: float = 0.0
    sampler: str = "unknown"
    rule: str | None = None

    def __post_init__(self) -> None:
        for name in ("eps", "alpha", "delta"):
            value = getattr(self, name)
            if not 0.0 < value < 1.0:
                raise ValueError(f"{name} lies strictly between 0 and 1, got {value}")
        if not 0.0 <= self.eps0 < 0.5:
            raise ValueError(f"eps0 lies in [0, 0.5), got {self.eps0}")
