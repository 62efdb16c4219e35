"""Whether a server drafts, by the counters on its Prometheus page."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["DraftCounters"]

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
