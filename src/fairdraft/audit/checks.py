"""What makes an audit INVALID, looked for in every batch before any statistics.

Axes: N tokens, C columns of a law.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from fairdraft.audit.subject import InvalidSubject, SubjectInfo
from fairdraft.stats.tokens import REST, ScoredTokens, Source

__all__ = ["BatchChecks", "SeenRequests", "is_greedy"]

#: a law may miss 1 by this much
SUM_TOLERANCE = 1e-4
#: laws that agree to this are the same law
SAME_LAW = 1e-9
#: a speculative subject must have shown a draft by then
PATIENCE = 2000
#: below it a request is greedy; the limit of the engines that are audited
GREEDY_TEMPERATURE = 1e-5
#: full rows that a nucleus may leave by chance in a batch
FULL_ROWS = 100

_DRAFTED = (int(Source.ACCEPTED), int(Source.REPLACED), int(Source.BONUS))


def is_greedy(info: SubjectInfo) -> bool:
    """Whether the subject says that it decodes at temperature 0."""
    temperature = info.parameters.get("temperature")
    return isinstance(temperature, int | float) and temperature < GREEDY_TEMPERATURE


class BatchChecks:
    """Looks at every batch of one subject; what it has to remember fits in a few numbers.

    Args:
        info: Of the subject.
        state: What `state` gave in an earlier sitting, or None.

    Attributes:
        num_tokens: Tokens seen.
        num_drafts: Tokens at which a draft was seen.
        last_text: Serial number of the last text, -1 before the first.
    """

    def __init__(self, info: SubjectInfo, state: dict[str, Any] | None = None) -> None:
        self.info = info
        state = state or {}
        self.num_tokens = int(state.get("num_tokens", 0))
        self.num_drafts = int(state.get("num_drafts", 0))
        self.last_text = int(state.get("last_text", -1))

    def state(self) -> dict[str, Any]:
        """What a resumed audit needs; JSON values."""
        return {
            "num_tokens": self.num_tokens,
            "num_drafts": self.num_drafts,
            "last_text": self.last_text,
        }

    def begin(self) -> None:
        """Refuses what needs no token to be refused.

        Raises:
            InvalidSubject: If the subject says that it is greedy.
        """
        if is_greedy(self.info):
            raise InvalidSubject(
                f"temperature = {self.info.parameters['temperature']} is greedy, and one right "
                "token has no statistics; audit at a temperature above 0, or compare token by "
                "token in the exact-match mode (fairdraft audit engine --temperature 0)"
            )

    def check(self, tokens: ScoredTokens) -> None:
        """Refuses a batch that cannot be judged, and counts its drafts.

        Raises:
            InvalidSubject: If it cannot; the message names the reason and the way out.
        """
        if not len(tokens):
            return
        self._check_order(tokens)
        _check_laws(tokens)
        _check_columns(tokens)
        _check_spread(tokens)
        _check_filters(tokens, self.info.parameters)
        seen = np.isin(tokens.source, _DRAFTED) | (tokens.drafted >= 0) | tokens.has_draft
        if tokens.point_mass is not None:
            seen |= tokens.point_mass
        self.num_tokens += len(tokens)
        self.num_drafts += int(seen.sum())
        self.last_text = int(tokens.text[-1])
        reason = self.reason_at_the_end()
        if reason is not None and self.num_tokens >= PATIENCE:
            raise InvalidSubject(reason)

    def reason_at_the_end(self) -> str | None:
        """Why what was seen cannot be judged, if an audit ends here: no draft was seen."""
        if not self.num_tokens or self.num_drafts or not self.info.is_speculative:
            return None
        return (
            f"no draft was seen in {self.num_tokens:,} tokens, so speculation was not tested; "
            "turn it on in what is audited, or audit it as plain decoding"
        )

    def _check_order(self, tokens: ScoredTokens) -> None:
        text = tokens.text
        if text[0] <= self.last_text or (np.diff(text) < 0).any():
            raise InvalidSubject(
                "texts are not in the order of their serial numbers, or one was cut in two by a "
                "batch; hand over whole texts, one after the other"
            )
        is_first = np.r_[True, np.diff(text) > 0]
        expected = np.where(is_first, 0, np.r_[0, tokens.position[:-1] + 1])
        if (tokens.position != expected).any():
            at = int((tokens.position != expected).argmax())
            raise InvalidSubject(
                f"text {int(text[at])} goes on at position {int(tokens.position[at])} where "
                f"{int(expected[at])} is due; score every token of a text, in order"
            )


def _check_laws(tokens: ScoredTokens) -> None:
    """Every row that is given is a probability distribution."""
    for name in ("target", "draft", "unfiltered", "raw_draft"):
        law = getattr(tokens, name)
        if law is None:
            continue
        total = law.sum(axis=1, dtype=np.float64)
        is_missing = np.isnan(law[:, 0]) if name in ("draft", "raw_draft") else np.zeros(1, bool)
        # a NaN anywhere else reaches the sum
        bad = ~(np.abs(total - 1) <= SUM_TOLERANCE) & ~is_missing
        if bad.any():
            at = int(bad.argmax())
            raise InvalidSubject(
                f"{_titles[name]} at position {int(tokens.position[at])} of text "
                f"{int(tokens.text[at])} sums to {total[at]:.6g}, not to 1 "
                f"({int(bad.sum())} rows of {len(tokens)}); give probabilities over the whole "
                "vocabulary, with a rest cell for what is not listed"
            )
        if (law < 0).any():
            raise InvalidSubject(
                f"{_titles[name]} holds a negative probability; give probabilities, not their "
                "logarithms"
            )


_titles = {
    "target": "the target's law",
    "draft": "the draft's law",
    "unfiltered": "the target's unfiltered law",
    "raw_draft": "the draft's raw law",
}


def _check_columns(tokens: ScoredTokens) -> None:
    width = tokens.num_columns
    outside = (tokens.column < 0) | (tokens.column >= width) | (tokens.drafted >= width)
    if outside.any():
        at = int(outside.argmax())
        raise InvalidSubject(
            f"position {int(tokens.position[at])} of text {int(tokens.text[at])} names column "
            f"{int(tokens.column[at])} of {width}; list every token, or put it into the rest cell"
        )


def _check_spread(tokens: ScoredTokens) -> None:
    if (tokens.target.max(axis=1) >= 1).all():
        raise InvalidSubject(
            f"each of the {len(tokens):,} target laws has one possible token, as at temperature 0; "
            "there is nothing to test, so audit at a temperature above 0 and with more than one "
            "token kept, or use the exact-match mode"
        )


def _check_filters(tokens: ScoredTokens, parameters: dict[str, Any]) -> None:
    """Looks for a target law without the filters that the parameters name."""
    top_k, top_p = parameters.get("top_k") or 0, parameters.get("top_p")
    min_p = parameters.get("min_p") or 0.0
    named = {"top_k": top_k > 0, "top_p": top_p is not None and top_p < 1, "min_p": min_p > 0}
    if not any(named.values()):
        return
    target = tokens.target
    reason = None
    if tokens.unfiltered is not None and (np.abs(target - tokens.unfiltered) <= SAME_LAW).all():
        reason = "equals the unfiltered law in every row"
    is_listed = np.ones(target.shape, bool) if tokens.ids is None else tokens.ids != REST
    law = np.where(is_listed, target, 0.0)
    kept = (law > 0).sum(axis=1)
    if named["top_k"] and top_k < tokens.num_columns:
        # ties with the k-th stay, so only what is below it counts
        kth = np.partition(law, -top_k, axis=1)[:, -top_k]
        if ((law > 0) & (law < kth[:, None] * (1 - 1e-6))).any():
            reason = f"gives more than {top_k} tokens a probability"
    if named["min_p"] and (law[law > 0] < _spread_like(law, min_p)[law > 0]).any():
        reason = f"gives tokens below {min_p:g} times the best one a probability"
    if named["top_p"] and len(tokens) >= FULL_ROWS and (kept == is_listed.sum(axis=1)).all():
        reason = reason or "drops no token in any row"
    if reason is not None:
        filters = ", ".join(f"{name} = {parameters[name]}" for name, on in named.items() if on)
        raise InvalidSubject(
            f"the target's law {reason}, and the parameters say {filters}: raw probabilities were "
            "given where processed ones are due; ask for processed logprobs, or turn the filters "
            "off"
        )


def _spread_like(law: np.ndarray, min_p: float) -> np.ndarray:
    return np.broadcast_to(law.max(axis=1, keepdims=True) * (min_p * (1 - 1e-3)), law.shape)


class SeenRequests:
    """Remembers seed and prompt of every text, for subjects whose seeds others choose.

    Args:
        declared: Whether two texts of one seed and prompt are expected.
    """

    def __init__(self, declared: bool = False) -> None:
        self.declared = declared
        self._first: dict[Hashable, str] = {}

    def note(self, seed: Hashable, prompt: Hashable, name: str, sample: int = 0) -> None:
        """Notes a text.

        Args:
            seed: None for a seed of its own that nobody knows.
            prompt: Anything that tells prompts apart, such as a hash.
            name: What messages call the text.
            sample: Which of the samples of one request.

        Raises:
            InvalidSubject: If another text had the same, and nobody declared it.
        """
        if seed is None or self.declared:
            return
        first = self._first.setdefault((seed, prompt, sample), name)
        if first != name:
            raise InvalidSubject(
                f"{first} and {name} have one prompt and one seed ({seed!r}), so they are one text "
                "and count once; give every request a seed of its own, or declare duplicates"
            )
