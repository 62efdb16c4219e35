"""Whether a server drafts, by the counters on its Prometheus page."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fairdraft.audit.checks import PATIENCE
from fairdraft.audit.subject import InvalidSubject

__all__ = ["DraftCounters", "DraftWatch"]

_LINE = re.compile(
    r"^[a-z]+:spec_decode_num_(?P<what>draft_tokens|accepted_tokens)(?:_total)?"
    r"(?:\{(?P<labels>[^}]*)\})?\s+(?P<value>\S+)",
    re.MULTILINE,
)
_MODEL = re.compile(r'model_name="([^"]*)"')


@dataclass(frozen=True)
class DraftCounters:
    """Tokens that a server drafted and accepted since it started, for all its clients."""

    drafted: int
    accepted: int

    @classmethod
    def parse(cls, page: str | None, model: str) -> DraftCounters | None:
        """Reads vLLM's counters `spec_decode_num_draft_tokens` and `..._accepted_tokens`.

        Args:
            page: Text of /metrics, or None.
            model: Counters that are labeled with another model are left out.

        Returns:
            None if the page has no such counter: the server does not speculate, or does not say.
        """
        sums: dict[str, float] = {}
        for line in _LINE.finditer(page or ""):
            owner = _MODEL.search(line["labels"] or "")
            if owner is None or owner[1] == model:
                sums[line["what"]] = sums.get(line["what"], 0.0) + float(line["value"])
        if "draft_tokens" not in sums:
            return None
        return cls(int(sums["draft_tokens"]), int(sums.get("accepted_tokens", 0)))

    def since(self, before: DraftCounters | None) -> DraftCounters:
        """What was counted after `before`; everything, if the server started anew."""
        if before is None or before.drafted > self.drafted:
            return self
        return DraftCounters(self.drafted - before.drafted, self.accepted - before.accepted)


class DraftWatch:
    """Compares what is said about speculation with the server's counters.

    Args:
        model: Name on the server.
        speculative: Whether it is said to speculate; None if nothing is said.
        page: Text of /metrics before the first token, or None.
    """

    def __init__(self, model: str, speculative: bool | None, page: str | None) -> None:
        self.model = model
        self.speculative = speculative
        self.before = DraftCounters.parse(page, model)
        self.num_tokens = 0
        self.next_note = 1

    def look(self, page: str | None, num_tokens: int) -> list[str]:
        """Returns sentences about drafts after `num_tokens` more tokens.

        Raises:
            InvalidSubject: If the counters contradict what was said.
        """
        self.num_tokens += num_tokens
        now = DraftCounters.parse(page, self.model)
        if now is None and "vllm:" in (page or ""):
            # without speculation it has the page and no such counter
            now = DraftCounters(0, 0)
        if now is None:
            return [self._unseen(page)]
        found = now.since(self.before)
        if self.speculative and not found.drafted and self.num_tokens >= PATIENCE:
            raise InvalidSubject(
                f"the server is said to speculate, and drafted nothing in {self.num_tokens:,} "
                "tokens: turn speculation on, or leave --speculative away to audit plain decoding"
            )
        if self.speculative is False and found.drafted:
            raise InvalidSubject(
                f"the server is said to decode plainly, and drafted {found.drafted:,} tokens "
                "meanwhile: turn speculation off, or leave --plain away"
            )
        if self.num_tokens < self.next_note:
            return []
        self.next_note = 10 ** len(str(self.num_tokens))
        return [
            f"by the server's counters, {found.drafted:,} tokens were drafted and "
            f"{found.accepted:,} accepted while the first {self.num_tokens:,} came"
        ]

    def _unseen(self, page: str | None) -> str:
        where = "has no /metrics page" if page is None else "counts no drafts at /metrics"
        said = {
            None: "whether it speculates is unknown",
            True: "that it speculates is the caller's word",
            False: "that it does not speculate is the caller's word",
        }
        return f"the server {where}: {said[self.speculative]}"
