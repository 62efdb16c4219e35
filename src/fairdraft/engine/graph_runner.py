"""Rounds replayed from CUDA graphs: one graph for each size of the batch and of its contexts.

Axes: B rows, K drafts.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from fairdraft.engine.round import Round, RoundRunner, ops_device, sources_of
from fairdraft.engine.round_graph import NUM_FIELDS, Decided, RoundGraph, RoundParts
from fairdraft.engine.rows import RowTable
from fairdraft.noise import Trace
from fairdraft.ops import Impl
from fairdraft.ops.arithmetic import power_of_two
from fairdraft.ops.dispatch import own_device
from fairdraft.speculators import (
    DeviceSpeculator,
    Dflash2Speculator,
    DflashSpeculator,
    DraftModelSpeculator,
    DsparkSpeculator,
    Eagle3Speculator,
    Guesses,
    MtpModulesSpeculator,
    MtpSpeculator,
    Proposal,
    SharedKvSpeculator,
    Speculator,
)

#: shortest context that gets a graph of its own, and how many graphs are kept
_SHORTEST = 128
_MOST_GRAPHS = 16
#: exactly these kinds draft in a graph: what a subclass proposes is its own
_DRAFTERS = (
    DraftModelSpeculator,
    MtpSpeculator,
    MtpModulesSpeculator,
    Eagle3Speculator,
    DsparkSpeculator,
    DflashSpeculator,
    Dflash2Speculator,
    SharedKvSpeculator,
)


def can_replay(device: torch.device, impl: Impl, trace: Trace | None) -> bool:
    """Whether rounds of a target on `device` can be graphs: CUDA, its kernels, and no trace."""
    return ops_device(device, impl, trace).type == "cuda"


class GraphRunner(RoundRunner):
    """Runs what it can as graphs, the rest (filters, processors, observers) eagerly.

    The tokens are those of eager rounds, up to how the device rounds a batch of another size. A
    graph drafts and verifies in one replay, whose time is counted as the target's.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._graphs: dict[tuple[bool, int, int, int], RoundGraph] = {}
        self._pool: Any = None
        self._drafter = _drafter_of(self.speculator)
        draft = self.speculator
        is_model = isinstance(draft, DraftModelSpeculator)
        self._is_apart = is_model and draft.model.device != self.target.device

    def run(self, rows: RowTable) -> Round:
        """Decides at least one token of every row; see `RoundRunner.run`."""
        drafter = self._drafter
        if (self.speculator is not None and drafter is None) or self._is_eager(rows):
            return super().run(rows)
        begin = time.perf_counter()
        anchor = self.next_anchor(rows)
        counts = np.zeros(rows.num_rows, np.int64)
        if drafter is not None:
            decided_ids = rows.token_ids[: rows.num_rows]
            counts = drafter.begin_steps(decided_ids, anchor, rows.max_draft_tokens())
        result = self._replay(rows, counts, drafter, None)
        if drafter is not None:
            drafter.commit(result.num_accepted_tokens)
        self.clock = self.clock.plus(target=time.perf_counter() - begin)
        return result

    def describe(self) -> str:
        """In a line, what of a round is replayed."""
        speculator = self.speculator
        if self._is_apart or (self._reader is not None and self._drafter is None):
            return "run as written: what drafts cannot be captured with the target"
        if speculator is None or self._drafter is not None:
            drafts = "" if speculator is None else ", drafts included"
            return f"replayed from CUDA graphs{drafts}, unless a row is filtered or processed"
        return "drafts as written, and the rest replayed from CUDA graphs where they have no law"

    def decide(self, rows: RowTable, proposal: Guesses) -> Round:
        """Scores and verifies a proposal; one of point masses by a graph."""
        speculator = self.speculator
        # a reader sees the states of every round
        if speculator is None or self._reader is not None:
            return super().decide(rows, proposal)
        if not self._is_plain(proposal) or self._is_eager(rows):
            return super().decide(rows, proposal)
        begin = time.perf_counter()
        drafts = np.zeros((speculator.num_speculative_tokens, rows.num_rows), np.int64)
        drafts[: proposal.token_ids.shape[1]] = proposal.token_ids.numpy().T
        result = self._replay(rows, proposal.num_draft_tokens.numpy(), None, drafts)
        self.clock = self.clock.plus(target=time.perf_counter() - begin)
        return result

    def _is_plain(self, proposal: Guesses) -> bool:
        """Whether a graph can verify it: ids alone, of a kind that the rule takes."""
        is_mistyped = self.rule != "common_noise" and not isinstance(proposal, Proposal)
        has_law = isinstance(proposal, Proposal) and proposal.draft_logits is not None
        return not (is_mistyped or has_law or proposal.errors or proposal.forbidden is not None)

    def _is_eager(self, rows: RowTable) -> bool:
        needs_host = rows["is_filtered"] | rows["is_processed"]
        # a round of a reader may begin with what the target keeps
        is_first = self._reader is not None and not self.cache.is_written
        is_watched = self.observer is not None
        return is_watched or is_first or self._is_apart or bool(needs_host.any())

    def _replay(
        self,
        rows: RowTable,
        counts: np.ndarray,
        speculator: DeviceSpeculator | None,
        drafts: np.ndarray | None,
    ) -> Round:
        depth = 0
        if speculator is not None:
            depth = speculator.num_speculative_tokens
            if rows.schedule is not None:
                # steps that no row drafts are not run
                depth = max(int(counts.max()), 1)
        elif drafts is not None:
            depth = len(drafts)
        graph = self._graph(rows, speculator, depth)
        fields = _fields(rows, counts)
        try:
            with own_device(self.target.device):
                decided = graph.run(fields if drafts is None else np.concatenate([fields, drafts]))
        except RuntimeError as error:
            self._graphs.clear()
            if graph.is_captured:
                raise
            raise RuntimeError(
                f"a round of {self.target.name!r} cannot be captured in a CUDA graph: {error}; "
                "pass enforce_eager=True (--enforce-eager)"
            ) from error
        return self._round(rows, counts, decided, graph)

    def _graph(self, rows: RowTable, speculator: DeviceSpeculator | None, depth: int) -> RoundGraph:
        """The graph that fits the batch, captured if there is none."""
        self._graphs = {at: graph for at, graph in self._graphs.items() if graph.is_valid}
        num_rows = min(power_of_two(rows.num_rows), rows.max_rows)
        needed = int(rows["num_decided"].max()) + depth
        limit = self.target.max_model_len
        length = min(max(_SHORTEST, power_of_two(needed)), limit)
        place = (speculator is not None, depth, num_rows, length)
        graph = self._graphs.pop(place, None)
        if graph is None:
            if len(self._graphs) >= _MOST_GRAPHS:
                # the one that was not used for longest
                del self._graphs[next(iter(self._graphs))]
            # a pool ends with the last graph in it
            if not self._graphs and self.target.device.type == "cuda":
                self._pool = torch.cuda.graph_pool_handle()
            reader: Any = None if self._reader is None else speculator
            parts = RoundParts((self.target, self.cache), speculator, reader, depth, self.rule)
            graph = RoundGraph(parts, num_rows, length, self._pool)
        self._graphs[place] = graph
        return graph

    def _round(
        self, rows: RowTable, counts: np.ndarray, decided: Decided, graph: RoundGraph
    ) -> Round:
        accepted, emitted = decided.num_accepted_tokens, decided.num_emitted_tokens
        errors = self.target_errors(decided.error)
        steps = np.arange(decided.draft_errors.shape[1])
        is_broken = (decided.draft_errors != 0) & (steps < counts[:, None])
        for row in np.flatnonzero(is_broken.any(1)).tolist():
            step = int(is_broken[row].argmax())
            assert self._drafter is not None
            errors[row] = self._drafter.error(step + 1, int(decided.draft_errors[row, step]))
            emitted[row] = accepted[row] = 0
        num_rows, width = decided.token_ids.shape
        return Round(
            token_ids=decided.token_ids,
            sources=sources_of(accepted, decided.last_stream, width),
            num_draft_tokens=counts,
            num_accepted_tokens=accepted,
            num_emitted_tokens=emitted,
            target_logits=graph.target_logits[:num_rows],
            processed_logits=graph.target_logits[:num_rows],
            errors=errors,
        )


def _drafter_of(speculator: Speculator | None) -> DeviceSpeculator | None:
    """The speculator, if its drafts can be a part of a graph."""
    if not isinstance(speculator, _DRAFTERS) or type(speculator) not in _DRAFTERS:
        return None
    # a graph runs all K steps of all rows, so a stop would save nothing there
    return None if speculator.has_stop else speculator


def _fields(rows: RowTable, counts: np.ndarray) -> np.ndarray:
    """The lines that a graph reads, in the order of `round_graph`."""
    anchor = rows["num_decided"]
    at = np.arange(rows.num_rows)
    fields = np.empty((NUM_FIELDS, rows.num_rows), np.int64)
    fields[:] = (
        rows["key"].view(np.int64),
        rows["sample"],
        anchor,
        counts,
        rows["temperature"].view(np.int64),
        rows.token_ids[at, np.maximum(anchor - 2, 0)],
        rows.token_ids[at, anchor - 1],
    )
    return fields
