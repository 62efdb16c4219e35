"""What every cell of a measurement runs: the same requests in the same batches."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from fairdraft.engine.llm import LLM
from fairdraft.engine.output import RequestMetrics, RequestOutput
from fairdraft.engine.params import SamplingParams
from fairdraft.engine.prompts import Prompt


class RequestFailed(Exception):
    """A request that was to be timed ended in an error; nothing was measured."""


@dataclass
class Runs:
    """What the timed requests of a cell gave, in the order of their numbers.

    Attributes:
        speeds: Tokens a second of each turn, all its requests together.
        metrics: Of each request.
        token_ids: Of each request.
        num_same_alone: Requests of turn 0 whose text is the one that they get alone; None if that
            was not looked at.
    """

    speeds: list[float] = field(default_factory=list)
    metrics: list[RequestMetrics] = field(default_factory=list)
    token_ids: list[list[int]] = field(default_factory=list)
    num_same_alone: int | None = None


@dataclass(frozen=True)
class Workload:
    """Requests in turns; request i continues prompt i modulo their number, under seed i.

    Attributes:
        prompts: What is continued.
        num_tokens: New tokens of each request; the end of a text is ignored.
        batch: Requests of a turn; turn t has the numbers t * batch to (t + 1) * batch - 1.
    """

    prompts: Sequence[Prompt]
    num_tokens: int
    batch: int = 1

    def __post_init__(self) -> None:
        for name, count in (
            ("num_tokens", self.num_tokens),
            ("prompts", len(self.prompts)),
            ("batch", self.batch),
        ):
            if count < 1:
                raise ValueError(f"{name}={count!r}: must be at least 1")

    @property
    def num_even_turns(self) -> int:
        """The fewest turns in which every prompt is continued equally often."""
        return math.lcm(len(self.prompts), self.batch) // self.batch

    def run(self, llm: LLM, temperature: float, turn: int, runs: Runs) -> float:
        """Times a turn, all its requests at once, and notes it; a negative one is not noted.

        Returns:
            Tokens a second.

        Raises:
            RequestFailed: If a request ends in an error.
        """
        numbers = range(turn * self.batch, (turn + 1) * self.batch)
        begin = time.perf_counter()
        outputs = self._generate(llm, temperature, numbers)
        seconds = time.perf_counter() - begin
        token_ids = [output.outputs[0].token_ids for output in outputs]
        speed = sum(map(len, token_ids)) / seconds
        if turn >= 0:
            runs.speeds.append(speed)
            runs.metrics += [output.metrics for output in outputs if output.metrics is not None]
            runs.token_ids += token_ids
        return speed

    def compare_alone(self, llm: LLM, temperature: float, runs: Runs) -> None:
        """Runs each request of turn 0 again, alone, and notes how many texts are the same.

        They are where the target's logits do not depend on the batch: a request's noise never does.

        Raises:
            RequestFailed: If a request ends in an error.
        """
        runs.num_same_alone = 0
        for number in range(self.batch):
            [output] = self._generate(llm, temperature, [number])
            runs.num_same_alone += output.outputs[0].token_ids == runs.token_ids[number]

    def _generate(
        self, llm: LLM, temperature: float, numbers: Sequence[int]
    ) -> list[RequestOutput]:
        params = [
            SamplingParams(
                temperature=temperature, max_tokens=self.num_tokens, seed=number, ignore_eos=True
            )
            for number in numbers
        ]
        prompts = [self.prompts[number % len(self.prompts)] for number in numbers]
        outputs = llm.generate(prompts, params)
        for output in outputs:
            if output.error is not None:
                raise RequestFailed(output.error)
        return outputs
