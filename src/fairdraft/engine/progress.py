"""How far a list of requests has come, at a cost that does not grow with its length."""

from __future__ import annotations

from fairdraft.engine.core import Engine
from fairdraft.engine.request import Request


class TokenCounter:
    """Counts emitted tokens of requests that were queued in this order."""

    def __init__(self, requests: list[Request], engine: Engine) -> None:
        self._requests = requests
        self._engine = engine
        self._first = 0
        self._settled = 0

    def has_unfinished(self) -> bool:
        """Whether any request has not ended."""
        while self._first < len(self._requests):
            request = self._requests[self._first]
            if request.num_unfinished:
                return True
            self._settled += self._engine.num_decided(request)
            self._first += 1
        return False

    def count(self) -> int:
        """Tokens emitted so far by all of them."""
        self.has_unfinished()
        total = self._settled
        for index in range(self._first, len(self._requests)):
            request = self._requests[index]
            # first come, first served: nothing behind it has begun
            if request.began is None:
                break
            total += self._engine.num_decided(request)
        return total
