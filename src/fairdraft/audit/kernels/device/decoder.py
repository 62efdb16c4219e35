"""Decodes the texts of an experiment in step, with tensors that stay where the ops are.

The same code runs a device's kernels and the host's ops, so that one can be held against the other.
Axes: N texts, L tokens a text, K drafts, S states, C columns of the experiment, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fairdraft import ops
from fairdraft.audit.kernels.device.call import Call
from fairdraft.audit.kernels.experiment import Experiment
from fairdraft.audit.subjects.toy import PROMPT
from fairdraft.noise import Stream
from fairdraft.noise.address import POSITION_BITS
from fairdraft.ops import DeviceAddress, Impl
from fairdraft.ops.triton.workspace import Workspace

__all__ = ["Decoded", "Decoder"]


@dataclass(frozen=True)
class Decoded:
    """Texts, in columns of the experiment.

    Attributes:
        columns: int64 [N, L]; -1 for a token whose chance is 0.
        is_accepted: Whether the first draft was accepted, bool [N].
        num_faults: Rows with an error and sampled drafts without a chance, int64 scalar.
    """

    columns: Tensor
    is_accepted: Tensor
    num_faults: Tensor


@dataclass
class Decoder:
    """An experiment through one kind of call.

    Attributes:
        experiment: What is decoded.
        call: How.
        key: Of text 0; text i has key + i.
        counts: No position comes twice, whatever layout names the draws; texts share one key.
        constant_position: Every draft of a round is drawn at the anchor's position.
        device: Where tensors are.
        impl: Of the ops.
    """

    experiment: Experiment
    call: Call
    key: int
    counts: bool = False
    constant_position: bool = False
    device: torch.device = torch.device("cpu")
    impl: Impl = "auto"

    def __post_init__(self) -> None:
        if self.counts and self.experiment.num_trials * self._numbers >> POSITION_BITS:
            raise ValueError(
                f"{self.experiment.num_trials} texts take more numbers than a position can be"
            )

    @property
    def _numbers(self) -> int:
        """Positions that a text takes if none may come twice."""
        return self.experiment.num_tokens * (2 * self._depth + 1)

    @property
    def _depth(self) -> int:
        return self.experiment.decoding.num_drafts

    @cached_property
    def _tables(self) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of target and draft, float32 [S, V], and the column of each id [V]."""
        pair = self.experiment.pair
        rows = (self.call.widened(table) for table in (pair.target_logits, pair.draft_logits))
        target, draft = (torch.from_numpy(row).to(self.device) for row in rows)
        columns = torch.from_numpy(self.call.columns(pair.vocab_size)).to(self.device)
        return target, draft, columns

    @cached_property
    def _options(self) -> dict:
        options: dict = {"impl": self.impl, "temperature": self.experiment.decoding.temperature}
        if self.impl == "triton":
            options["arithmetic"] = self.call.arithmetic
            options["workspace"] = Workspace(self.device)
        return options

    def decode(self, first: int, count: int) -> Decoded:
        """Decodes texts first .. first + count - 1; nothing here waits for the device."""
        text = torch.arange(first, first + count, device=self.device)
        if self.call.op == "sample":
            return self._sampled(text)
        length, depth = self.experiment.num_tokens, self._depth
        # a round may stick out past the end, where nothing is read
        columns = torch.zeros((count, length + depth + 2), dtype=torch.int64, device=self.device)
        columns[:, 0] = PROMPT[-1]
        done = torch.zeros(count, dtype=torch.int64, device=self.device)
        faults = torch.zeros((), dtype=torch.int64, device=self.device)
        is_accepted = torch.zeros(count, dtype=torch.bool, device=self.device)
        for number in range(length):
            last = columns.gather(1, done[:, None])[:, 0].clamp(min=0)
            decided, drawn, broken = self._round(text, done, number, last)
            accepted = decided.num_accepted_tokens
            if number == 0:
                is_accepted = accepted > 0
            faults += broken + (decided.error != 0).sum()
            at = done[:, None] + 1 + torch.arange(depth + 1, device=self.device)
            columns.scatter_(1, at, drawn)
            done = (done + accepted + 1).clamp(max=length)
        return Decoded(columns[:, 1 : length + 1], is_accepted, faults)

    def _sampled(self, text: Tensor) -> Decoded:
        key, at = self._names(text, torch.zeros_like(text), 0)
        target, _, column_of = self._tables
        address = DeviceAddress(Stream.TARGET, key, at + len(PROMPT))
        drawn = self._sample(_rows(target, torch.zeros_like(text)), address)
        columns = column_of[drawn.token_ids.clamp(min=0)][:, None]
        nothing = torch.zeros_like(text, dtype=torch.bool)
        return Decoded(columns, nothing, (drawn.error != 0).sum())

    def _sample(self, rows: Tensor, address: DeviceAddress, **options) -> ops.Sampled:
        return ops.sample(rows, address, method=self.call.method, **self._options | options)

    def _names(self, text: Tensor, done: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """Keys of the texts, and where round `number` begins, the prompt apart."""
        if not self.counts:
            return text + self.key, done
        at = text * self._numbers + number * (2 * self._depth + 1)
        return torch.full_like(text, self.key), at

    def _round(
        self, text: Tensor, done: Tensor, number: int, last: Tensor
    ) -> tuple[ops.Verdict, Tensor, Tensor]:
        """The verdict of a round, its tokens' columns [N, K + 1], and how many rows are faulty."""
        decoding, depth = self.experiment.decoding, self._depth
        target, draft, column_of = self._tables
        key, start = self._names(text, done, number)
        start = start + len(PROMPT)
        contexts, ids, laws, faults = [last], [], [], torch.zeros_like(done[0])
        for step in range(1, depth + 1):
            rows = _rows(draft, contexts[-1])
            address = DeviceAddress(
                Stream.DRAFT,
                key,
                start if self.constant_position else start + (step - 1),
                anchor=start,
                node=step,
            )
            greedy = {"temperature": 0.0} if decoding.is_greedy else {}
            drawn = self._sample(rows, address, **greedy)
            faults = faults + (drawn.error != 0).sum()
            ids.append(drawn.token_ids)
            laws.append(rows)
            contexts.append(column_of[drawn.token_ids.clamp(min=0)].clamp(min=0))
        rule = decoding.rule
        assert rule in ("token", "block"), "other rules are not played here"
        has_law = self.call.declares_law and not decoding.is_greedy
        decided = ops.verify_chain(
            _rows(target, torch.stack(contexts, 1)),
            torch.stack(ids, 1),
            torch.full_like(text, depth),
            draft_logits=_stacked(draft, laws) if has_law else None,
            key=key,
            # behind the drafts' own numbers
            anchor=start + depth if self.counts else start,
            rule=rule,
            **self._options,
        )
        broken = torch.as_tensor(decided.num_broken, device=self.device).sum()
        columns = column_of[decided.token_ids.clamp(min=0)]
        return decided, torch.where(decided.token_ids < 0, 0, columns), faults + broken


def _rows(table: Tensor, state: Tensor) -> Tensor:
    """The rows of states, [.., V]; one row in all is not copied."""
    if len(table) == 1:
        return table[0].expand(*state.shape, -1)
    return table[state]


def _stacked(table: Tensor, rows: list[Tensor]) -> Tensor:
    """The drafts' laws, [N, K, V]."""
    if len(table) == 1:
        return table[0].expand(len(rows[0]), len(rows), -1)
    return torch.stack(rows, 1)
