"""One round on the device, with inputs and outputs in fixed places, replayed as a CUDA graph.

Axes: B rows of the graph, K drafts, R = K + 1, V the target's vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairdraft import ops
from fairdraft.models import CausalLM, RaggedCache
from fairdraft.models.device_forward import forward_on_device
from fairdraft.noise import Stream
from fairdraft.ops import DeviceAddress
from fairdraft.ops.triton.workspace import Workspace
from fairdraft.ops.verify import AnyRule
from fairdraft.speculators import DraftModelSpeculator

# what the host writes before each round, one line of int64 [B] a field; drafts may follow
KEY, SAMPLE, ANCHOR, COUNT, TEMPERATURE, BEFORE, LAST, NUM_FIELDS = range(8)


@dataclass
class RoundParts:
    """What a round runs on.

    Attributes:
        target: The target and its cache.
        speculator: Whose steps run on the device; None where drafts come from the host, or none.
        depth: K.
        rule: Verification rule.
    """

    target: tuple[CausalLM, RaggedCache]
    speculator: DraftModelSpeculator | None
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
        self._caches = [cache]
        if parts.speculator is not None:
            self._caches.append(parts.speculator.cache)
        for held in self._caches:
            # one slot more: padding past the context goes there
            held.reserve(num_rows, min(read_length, held.max_length) + 1)
        given = 0 if parts.speculator is not None else parts.depth
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
        depth = parts.depth
        anchor, last = fields[ANCHOR], fields[LAST]
        errors = torch.zeros(depth, self.num_rows, dtype=torch.int64, device=self._device)
        laws = None
        if parts.speculator is None:
            drafts = fields[NUM_FIELDS:]
        else:
            drafts, laws, errors = self._draft(parts.speculator)
        steps = torch.arange(depth + 1, device=self._device)
        model, cache = parts.target
        # placeholders and foreign ids are never read, but must be ids to be fed
        fed = torch.cat([last[:, None], drafts.T.clamp(0, model.vocab_size - 1)], dim=1)
        logits = forward_on_device(
            model, fed, anchor[:, None] - 1 + steps, cache, read_length=self.read_length
        )
        self.target_logits = logits[..., : model.vocab_size]
        options: dict[str, Any] = {
            "key": fields[KEY],
            "anchor": anchor,
            "sample": fields[SAMPLE],
            "temperature": fields[TEMPERATURE].view(torch.float64),
            "impl": "triton",
            "workspace": self._workspace,
            "validate": False,
        }
        given = (self.target_logits, drafts.T.contiguous(), fields[COUNT])
        if parts.rule == "common_noise":
            verdict = ops.verify_chain(*given, draft_logits=None, rule="common_noise", **options)
        else:
            verdict = ops.verify_chain(*given, draft_logits=laws, rule=parts.rule, **options)
        numbers = (
            verdict.num_accepted_tokens,
            verdict.num_emitted_tokens,
            verdict.last_stream,
            verdict.error,
        )
        self._packed = torch.cat([errors, verdict.token_ids.T, torch.stack(numbers)])

    def _draft(self, speculator: DraftModelSpeculator) -> tuple[Tensor, Tensor | None, Tensor]:
        """K drafts of every row with their laws and errors: [K, B], [B, K, V], [K, B]."""
        fields, vocabulary = self._inputs, speculator.vocabulary
        anchor, depth = fields[ANCHOR], self._parts.depth
        forward = partial(
            forward_on_device,
            speculator.model,
            cache=speculator.cache,
            read_length=min(self.read_length, speculator.model.max_model_len),
            last_only=True,
        )
        # a row of one token feeds it twice, to the same slot
        positions = torch.stack([(anchor - 2).clamp(min=0), anchor - 1], dim=1)
        logits = forward(vocabulary.known_on_device(fields[BEFORE : LAST + 1].T), positions)
        drafts, laws, errors = [], [], []
        for step in range(1, depth + 1):
            law = vocabulary.fit(logits)
            at = self._draft_address(step)
            drawn = ops.sample(
                law,
                at,
                temperature=0.0 if speculator.greedy else fields[TEMPERATURE].view(torch.float64),
                impl="triton",
                workspace=self._workspace,
                validate=False,
            )
            drafts.append(drawn.token_ids)
            laws.append(law)
            errors.append(drawn.error)
            if step < depth:
                token_ids = vocabulary.known_on_device(drawn.token_ids.clamp(min=0))
                logits = forward(token_ids[:, None], (anchor + (step - 1))[:, None])
        has_laws = not speculator.greedy and self._parts.rule != "common_noise"
        q = torch.stack(laws, dim=1) if has_laws else None
        return torch.stack(drafts), q, torch.stack(errors)

    def _draft_address(self, step: int) -> DeviceAddress:
        """As `CommonSampler` names draft `step` under common noise, and `SharedSampler` else."""
        fields = self._inputs
        anchor = fields[ANCHOR]
        named: dict[str, Any] = {
            "key": fields[KEY],
            "position": anchor + (step - 1),
            "sample": fields[SAMPLE],
        }
        if self._parts.rule == "common_noise":
            return DeviceAddress(Stream.TARGET, **named)
        return DeviceAddress(Stream.DRAFT, anchor=anchor, node=step, **named)

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
        return tuple(cache.num_moves for cache in self._caches)
