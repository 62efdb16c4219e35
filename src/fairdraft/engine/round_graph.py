"""One round on the device, with inputs and outputs in fixed places, replayed as a CUDA graph.

Axes: B rows of the graph, K drafts, R = K + 1, V the target's vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairdraft import ops
from fairdraft.engine.device_race import DeviceRace
from fairdraft.models import CausalLM, RaggedCache
from fairdraft.models.device_forward import forward_on_device
from fairdraft.ops.triton.workspace import Workspace
from fairdraft.ops.verify import AnyRule
from fairdraft.speculators import (
    DeviceFeatures,
    DeviceReader,
    DeviceSpeculator,
    DeviceState,
    TargetMemory,
)

# what the host writes before each round, one line of int64 [B] a field; drafts may follow
KEY, SAMPLE, ANCHOR, COUNT, TEMPERATURE, BEFORE, LAST, NUM_FIELDS = range(8)


@dataclass
class RoundParts:
    """What a round runs on.

    Attributes:
        target: The target and its cache.
        speculator: Whose steps run on the device; None where drafts come from the host, or none.
        reader: The same, where it reads the target's states.
        depth: K.
        rule: Verification rule.
    """

    target: tuple[CausalLM, RaggedCache]
    speculator: DeviceSpeculator | None
    reader: DeviceReader | None
    depth: int
    rule: AnyRule


@dataclass
class Decided:
    """What a round decided, on the host [B, ...]; axes as in `engine.round.Round`."""

    draft_errors: np.ndarray
    token_ids: np.ndarray
    num_accepted_tokens: np.ndarray
    num_emitted_tokens: np.ndarray
    last_stream: np.ndarray
    error: np.ndarray


class RoundGraph:
    """A round of at most B rows of at most `read_length` tokens, after its drafts as well.

    Rows past those in use are padding: they compute on token 0 in rows of the caches that nobody
    holds, under no request's key, and what they decide is dropped.

    Attributes:
        num_rows: B.
        read_length: Slots that attention reads.
        target_logits: The target's raw logits of the last round [B, R, V].
    """

    def __init__(
        self, parts: RoundParts, num_rows: int, read_length: int, pool: Any = None
    ) -> None:
        self.num_rows = num_rows
        self.read_length = read_length
        self._parts = parts
        model, cache = parts.target
        self._device = model.device
        # one slot more: padding past the context goes there
        cache.reserve(num_rows, min(read_length, cache.max_length) + 1)
        given = parts.depth
        if parts.speculator is not None:
            parts.speculator.reserve(num_rows, read_length)
            given = 0
        is_cuda = self._device.type == "cuda"
        shape = (NUM_FIELDS + given, num_rows)
        self._staging = torch.zeros(shape, dtype=torch.int64, pin_memory=is_cuda)
        self._inputs = torch.zeros(shape, dtype=torch.int64, device=self._device)
        self._workspace = Workspace(self._device)
        self.target_logits = torch.empty(0)
        self._packed = torch.empty(0)
        self._pool = pool
        self._graph: Any = None
        self._place: tuple[int, ...] | None = None

    @property
    def is_captured(self) -> bool:
        """Whether there is a graph to replay."""
        return self._graph is not None

    @property
    def is_valid(self) -> bool:
        """Whether the caches are where they were; a graph holds addresses of memory."""
        return self._place is None or self._place == self._memory()

    def run(self, fields: np.ndarray) -> Decided:
        """Runs the round of the first rows; waits for it.

        Args:
            fields: int64 [F, N], N at most B: NUM_FIELDS lines as named above (TEMPERATURE holds
                the bits of a float64), then one line for each draft that the host made.

        Returns:
            Decided, of N rows.
        """
        count = fields.shape[1]
        host = self._staging.numpy()
        host[:, :count] = fields
        # padding is an empty request of its own: greedy, on token 0 at position 0
        host[:, count:] = 0
        host[ANCHOR, count:] = 1
        self._inputs.copy_(self._staging, non_blocking=True)
        if self._device.type != "cuda":
            self._run()
            self._place = self._memory()
            return self._unpack(count)
        if self._graph is None:
            self._graph = self._capture()
        self._graph.replay()
        return self._unpack(count)

    def _capture(self) -> Any:
        # the round runs once outside, to compile and to bring constants to the device; the replay
        # writes the same keys and values to the same slots again
        stream = torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            self._run()
        torch.cuda.current_stream(self._device).wait_stream(stream)
        self._place = self._memory()
        graph = torch.cuda.CUDAGraph()
        # another engine's thread may go on meanwhile
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            self._run()
        return graph

    def _run(self) -> None:
        """The round itself: nothing here waits for the device or depends on what it holds."""
        parts, fields = self._parts, self._inputs
        anchor = fields[ANCHOR]
        laws = None
        if parts.speculator is None:
            drafts = fields[NUM_FIELDS:]
            errors = torch.zeros_like(drafts)
        else:
            race = self._new_race(parts.speculator)
            length = self.read_length
            state = DeviceState(
                last_two=fields[BEFORE : LAST + 1].T,
                num_decided=anchor,
                depth=parts.depth,
                read_length=length,
                draw=race.draw,
                memory=TargetMemory(parts.target[1], anchor - 1, read_length=length),
            )
            parts.speculator.draft_on_device(state)
            drafts, laws, errors = race.token_ids, race.laws, race.errors
        states = self._forward(drafts)
        verdict = self._verify(drafts, laws)
        if parts.reader is not None:
            parts.reader.observe_on_device(
                DeviceFeatures(
                    tuple(states[layer] for layer in parts.reader.feature_layers),
                    anchor - 1,
                    verdict.num_emitted_tokens,
                    verdict.token_ids,
                    self.read_length,
                )
            )
        numbers = (
            verdict.num_accepted_tokens,
            verdict.num_emitted_tokens,
            verdict.last_stream,
            verdict.error,
        )
        self._packed = torch.cat([errors, verdict.token_ids.T, torch.stack(numbers)])

    def _forward(self, drafts: Tensor) -> tuple[Tensor, ...]:
        """Forwards the last decided token and drafts [K, B] of every row; returns the states."""
        parts, fields = self._parts, self._inputs
        model, cache = parts.target
        steps = torch.arange(parts.depth + 1, device=self._device)
        # placeholders and foreign ids are never read, but must be ids to be fed
        fed = torch.cat([fields[LAST][:, None], drafts.T.clamp(0, model.vocab_size - 1)], dim=1)
        logits, states = forward_on_device(
            model,
            fed,
            fields[ANCHOR][:, None] - 1 + steps,
            cache,
            read_length=self.read_length,
            hidden_states=parts.reader is not None,
        )
        self.target_logits = logits[..., : model.vocab_size]
        return states

    def _verify(self, drafts: Tensor, laws: Tensor | None) -> ops.Verdict:
        fields, rule = self._inputs, self._parts.rule
        options: dict[str, Any] = {
            "key": fields[KEY],
            "anchor": fields[ANCHOR],
            "sample": fields[SAMPLE],
            "temperature": fields[TEMPERATURE].view(torch.float64),
            "impl": "triton",
            "workspace": self._workspace,
            "validate": False,
        }
        given = (self.target_logits, drafts.T.contiguous(), fields[COUNT])
        if rule == "common_noise":
            return ops.verify_chain(*given, draft_logits=None, rule="common_noise", **options)
        return ops.verify_chain(*given, draft_logits=laws, rule=rule, **options)

    def _new_race(self, speculator: DeviceSpeculator) -> DeviceRace:
        fields = self._inputs
        return DeviceRace(
            {"key": fields[KEY], "anchor": fields[ANCHOR], "sample": fields[SAMPLE]},
            fields[TEMPERATURE].view(torch.float64),
            rule=self._parts.rule,
            is_greedy=speculator.greedy,
            workspace=self._workspace,
        )

    def _unpack(self, count: int) -> Decided:
        packed = self._packed.cpu().numpy()[:, :count]
        depth = self._parts.depth
        rows = iter(packed[2 * depth + 1 :])
        return Decided(
            np.ascontiguousarray(packed[:depth].T),
            np.ascontiguousarray(packed[depth : 2 * depth + 1].T),
            *(np.ascontiguousarray(row) for row in rows),
        )

    def _memory(self) -> tuple[int, ...]:
        speculator = self._parts.speculator
        num_moves = 0 if speculator is None else speculator.num_moves
        return self._parts.target[1].num_moves, num_moves
