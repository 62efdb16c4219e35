"""What a speculator may learn of requests besides their decided tokens, if it asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable


@runtime_checkable
class RequestReader(Protocol):
    """A speculator that reads what a request brought."""

    def begin_request(self, row: int, prompt_length: int, prediction: Sequence[int] | None) -> None:
        """Follows each `admit_row`, again after a preemption.

        Args:
            row: Of the batch.
            prompt_length: Where the output begins in the row's decided tokens.
            prediction: Ids of `SamplingParams.prediction`, or None.
        """
        ...


@runtime_checkable
class OutputReader(Protocol):
    """A speculator that learns from the outputs of requests that ended.

    Drafts then depend on other requests: a request's tokens still follow the target's law, but its
    key alone no longer repeats them (level R1). So such a speculator says so when it is described.
    """

    def learn_output(self, key: int, token_ids: list[int]) -> None:
        """Takes in an output that ended by a stop or at its length; not an aborted or failed one.

        Args:
            key: The request's noise key, shared by its samples. Outputs must not be drafted from
                under the same key: there they know the draws that verify them.
            token_ids: Of one sample.
        """
        ...
