"""The samplers that a round lends to its speculator: the only part that touches noise.

`SharedSampler` draws with noise of the drafts' own and gives the law with each draft: any rule may
verify them. `CommonSampler` guesses with the noise that the target will draw with and gives no law:
only rule `common_noise` may verify them, since a ratio of laws asks for independent noise. What one
draws can therefore not be made into what the other's rules take.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from fairdraft import noise, ops
from fairdraft.noise import Stream, Trace
from fairdraft.ops import Impl
from fairdraft.ops.dispatch import resolve_impl
from fairdraft.ops.rows import as_rows, temperature_scales
from fairdraft.ops.sample import Method, TileStats, check_method, sample_rows
from fairdraft.ops.verdict import copied_together

if TYPE_CHECKING:
    from fairdraft.ops.triton.workspace import Workspace


@dataclass
class Guessed:
    """One draft for each row, without a law.

    Attributes:
        token_ids: [B], int64, on the host; PLACEHOLDER_TOKEN_ID where `error` is set.
        error: [B], int64, on the host; 0 where a token was drawn.
    """

    token_ids: Tensor
    error: Tensor


@dataclass
class Drawn(Guessed):
    """One draft for each row.

    Attributes:
        logits: The law that was sampled, at the row's temperature [B, V]; the numbers themselves.
        stats: Of its tiles, where they were asked for and kernels drew.
    """

    logits: Tensor
    stats: TileStats | None = None


@dataclass
class RoundSampler(ABC):
    """Draws the drafts of one round under each request's temperature and filters.

    Attributes:
        key: Request keys [B], uint64.
        sample: Which of the request's samples [B].
        anchor: Decided tokens when the round began [B].
        temperature: [B], float64; 0 makes a row greedy.
        top_k, top_p, min_p: [B]; 0, 1 and 0 are off.
        filtered: Rows with a filter [B], bool.
        num_steps: Most drafts of any row.
        impl: Implementation of the ops.
        method: How tokens are drawn; see `ops.sample`.
        trace: Records every draw, or None.
        device: Where logits are sampled.
        workspace: Scratch of the kernels there, or None.
        process: Called with logits [N, V], their rows [N] and what the round has drafted for these
            so far [N, step - 1]; returns the logits to filter and draw from. None for no change.
        depths: Depth of each node of a tree, the root's first [num_steps + 1]; None for a chain.
    """

    key: np.ndarray
    sample: np.ndarray
    anchor: np.ndarray
    temperature: np.ndarray
    top_k: np.ndarray
    top_p: np.ndarray
    min_p: np.ndarray
    filtered: np.ndarray
    num_steps: int
    impl: Impl = "auto"
    method: Method = "race"
    trace: Trace | None = None
    device: torch.device = torch.device("cpu")
    workspace: Workspace | None = None
    process: Callable[[Tensor, np.ndarray, np.ndarray], Tensor] | None = None
    depths: np.ndarray | None = None

    def law(self, logits: Tensor, step: int, rows: np.ndarray, *, greedy: bool = False) -> Tensor:
        """The law that `draw` would sample, before anything is drawn [N, V]; arguments as there.

        Noise:
            None.
        """
        if self.process is not None:
            logits = self.process(logits, rows, self._drawn[rows, : step - 1])
        return logits if greedy else self._filter(logits, rows)

    def _draw(
        self,
        logits: Tensor,
        step: int,
        rows: np.ndarray,
        greedy: bool,
        is_law: bool,
        trace: Trace | None,
    ) -> Drawn:
        if not 1 <= step <= self.num_steps:
            raise ValueError(f"step = {step} is outside 1..{self.num_steps}, the round's drafts")
        count = len(self.anchor)
        # all rows in another order are not all rows
        is_whole = len(rows) == count and bool((rows == self._every_row).all())
        if is_whole and self._is_plain and trace is None:
            return self._draw_whole(logits, step, greedy)
        first = (step - 1) * count
        at = self._addresses[slice(first, first + count) if is_whole else first + rows]
        if not is_law:
            logits = self.law(logits, step, rows, greedy=greedy)
        drawn = self._sample(logits, at, rows, greedy, trace)
        if self.process is not None:
            self._drawn[rows, step - 1] = drawn.token_ids.numpy()
        return drawn

    def _sample(
        self,
        logits: Tensor,
        at: noise.Address,
        rows: np.ndarray,
        greedy: bool,
        trace: Trace | None,
        return_stats: bool = False,
    ) -> Drawn:
        """Draws from a law for each of `rows`, at an address for each."""
        if self._backend is None:
            drawn = ops.sample(
                logits,
                at,
                temperature=0.0 if greedy else self.temperature[rows],
                method=self.method,
                impl=self.impl,
                return_stats=return_stats,
                trace=trace,
                workspace=self.workspace,
            )
            # one wait for the device, not two
            host = copied_together({"token_ids": drawn.token_ids, "error": drawn.error})
            return Drawn(**host, logits=logits, stats=drawn.stats)
        scales = np.zeros(len(rows), np.float32) if greedy else self._scales[rows]
        values = as_rows("logits", logits, dims=2)
        token_ids, _, error = sample_rows(
            values, scales, at, self._backend, method=self.method, trace=trace
        )
        return Drawn(torch.from_numpy(token_ids), torch.from_numpy(error), logits)

    def _draw_whole(self, logits: Tensor, step: int, greedy: bool) -> Drawn:
        """Draws a step of all rows where there is nothing to do but to draw, in one call."""
        values = as_rows("logits", logits, dims=2)
        count = len(self.anchor)
        if len(values) != count:
            raise ValueError(f"logits has {len(values)} rows; draft {step} needs {count}")
        at = self._addresses
        scales = self._no_scales if greedy else self._scales
        token_ids, error = self._draw_step(
            values, scales, at.key, at.counter, (step - 1) * count, self.method == "race"
        )
        return Drawn(torch.from_numpy(token_ids), torch.from_numpy(error), logits)

    # what no draw changes is found and checked once a round
    @cached_property
    def _backend(self) -> Literal["reference", "cpu"] | None:
        """What draws on the host; None where kernels do."""
        check_method(self.method)
        backend = resolve_impl(self.impl, self.device)
        return None if backend == "triton" else backend

    @cached_property
    def _scales(self) -> np.ndarray:
        return temperature_scales("temperature", self.temperature, len(self.anchor))

    @cached_property
    def _every_row(self) -> np.ndarray:
        return np.arange(len(self.anchor))

    @cached_property
    def _no_scales(self) -> np.ndarray:
        return np.zeros(len(self.anchor), np.float32)

    @cached_property
    def _is_plain(self) -> bool:
        """Whether rows are neither processed nor filtered, and the CPU's kernels draw."""
        return self.process is None and not self._has_filter and self._backend == "cpu"

    @cached_property
    def _draw_step(self) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
        # numba is not there unless the CPU's kernels are
        from fairdraft.ops.cpu.sample import draw_step

        return draw_step

    @cached_property
    def _has_filter(self) -> bool:
        return bool(self.filtered.any())

    @cached_property
    def _drawn(self) -> np.ndarray:
        # the round's drafts so far, which the law of the next one is processed with
        return np.full((len(self.anchor), self.num_steps), ops.PLACEHOLDER_TOKEN_ID)

    @cached_property
    def _addresses(self) -> noise.Address:
        # all steps of the round in one call, step after step
        return self._named(np.arange(1, self.num_steps + 1)[:, None])

    @abstractmethod
    def _named(self, steps: np.ndarray) -> noise.Address:
        """Addresses of every row at each of the steps [K, 1]: [K B]."""

    def _filter(self, logits: Tensor, rows: np.ndarray) -> Tensor:
        if not self._has_filter:
            return logits
        chosen = np.flatnonzero(self.filtered[rows])
        if not len(chosen):
            return logits
        at = rows[chosen]
        index = torch.from_numpy(chosen).to(logits.device)
        kept = ops.filter_logits(
            logits[index],
            temperature=self.temperature[at],
            top_k=self.top_k[at],
            top_p=self.top_p[at],
            min_p=self.min_p[at],
            impl=self.impl,
        )
        if len(chosen) == len(rows):
            return kept
        logits = logits.clone()
        logits[index] = kept
        return logits


@dataclass
class SharedSampler(RoundSampler):
    """Draws drafts with noise of their own, for every rule; attributes as `RoundSampler`."""

    def draw(
        self,
        logits: Tensor,
        step: int,
        rows: np.ndarray,
        *,
        greedy: bool = False,
        is_law: bool = False,
    ) -> Drawn:
        """Draws draft `step` of the given rows.

        Args:
            logits: Draft logits over the target's vocabulary [N, V], one for each of `rows`.
            step: 1 for the first draft of the round.
            rows: Rows of the batch [N].
            greedy: Takes the best token of every row; a point mass that uses no noise.
            is_law: Whether `logits` came from `law` and are sampled as they are.

        Returns:
            Drawn, whose logits are the processed and filtered law.

        Noise:
            DRAFT at position anchor + step - 1, anchor, node step.

        Distribution:
            softmax(logits filtered by the request's top-k, top-p and min-p / temperature).
        """
        return self._draw(logits, step, rows, greedy, is_law, self.trace)

    def draw_nodes(
        self, laws: Tensor, nodes: np.ndarray, rows: np.ndarray, *, greedy: bool = False
    ) -> Drawn:
        """Draws nodes of each row's tree, any number of a row.

        Args:
            laws: What each is drawn from, from `law`, without its elder siblings [N, V].
            nodes: Nodes [N], from 1.
            rows: Their rows of the batch [N].
            greedy: As in `draw`.

        Noise:
            DRAFT at position anchor + depth - 1, anchor, the node's own number.
        """
        at = self._addresses[(nodes - 1) * len(self.anchor) + rows]
        return self._sample(laws, at, rows, greedy, self.trace, return_stats=not greedy)

    def _named(self, steps: np.ndarray) -> noise.Address:
        depths = steps if self.depths is None else self.depths[steps]
        return noise.address(
            Stream.DRAFT,
            key=self.key,
            position=self.anchor + depths - 1,
            anchor=self.anchor,
            node=steps,
            sample=self.sample,
        )


@dataclass
class CommonSampler(RoundSampler):
    """Guesses the target's tokens with the target's own noise, for rule `common_noise` alone.

    Attributes as `RoundSampler`.
    """

    def draw(
        self,
        logits: Tensor,
        step: int,
        rows: np.ndarray,
        *,
        greedy: bool = False,
        is_law: bool = False,
    ) -> Guessed:
        """Guesses draft `step` of the given rows; arguments as in `SharedSampler.draw`.

        Returns:
            Guessed: a token that shares its noise with the target's has no law to hand on.

        Noise:
            TARGET at position anchor + step - 1, anchor 0, node 0: the race of the draft's law with
            the exponentials of the target's. A trace logs it as a guess.
        """
        trace = None if self.trace is None else self.trace.for_guesses()
        drawn = self._draw(logits, step, rows, greedy, is_law, trace)
        return Guessed(drawn.token_ids, drawn.error)

    def _named(self, steps: np.ndarray) -> noise.Address:
        return noise.address(
            Stream.TARGET, key=self.key, position=self.anchor + steps - 1, sample=self.sample
        )
