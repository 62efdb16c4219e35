"""One round of the batch: propose, one target forward, filter, verify.

Axes: B rows, K drafts, V the target's vocabulary.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fairdraft import ops
from fairdraft.engine.observation import Observation, Observer
from fairdraft.engine.processing.draft import DraftProcessing
from fairdraft.engine.processing.target import process_target
from fairdraft.engine.prompt_logprobs import score_prompts
from fairdraft.engine.request import Clock
from fairdraft.engine.rows import RowTable
from fairdraft.models import CausalLM
from fairdraft.models.blocks import TreeBlock
from fairdraft.noise import Stream, Trace
from fairdraft.ops import Impl
from fairdraft.ops.dispatch import has_kernels
from fairdraft.ops.verify import AnyRule
from fairdraft.speculators import (
    CommonSampler,
    DraftState,
    FeatureReader,
    Features,
    Guesses,
    Proposal,
    SharedSampler,
    Speculator,
    TargetMemory,
)

if TYPE_CHECKING:
    from fairdraft.ops.triton.workspace import Workspace


@dataclass
class Round:
    """What a round decided, before anything is cut.

    Attributes:
        token_ids: Accepted drafts and one token more [B, K + 1], padded with -1.
        sources: Stream code of each token [B, K + 1].
        num_draft_tokens: Drafts present [B].
        num_accepted_tokens: Drafts that stood [B].
        num_emitted_tokens: Tokens emitted [B].
        target_logits: The target's raw logits [B, K + 1, V]; rows that are processed may be too.
        processed_logits: What was verified, after processors and filters [B, K + 1, V].
        errors: Row to message, for rows that fail.
        states: The target's hidden states by layer [B, K + 1, H], where a speculator reads them.
    """

    token_ids: np.ndarray
    sources: np.ndarray
    num_draft_tokens: np.ndarray
    num_accepted_tokens: np.ndarray
    num_emitted_tokens: np.ndarray
    target_logits: Tensor
    processed_logits: Tensor
    errors: dict[int, str]
    states: tuple[Tensor, ...] | None = None


class RoundRunner:
    """Runs rounds of one target with at most one speculator.

    Attributes:
        cache: The target's cache: every decided token of a row but the last.
        clock: Seconds spent so far.
        observer: Sees every verified round, or None.
    """

    def __init__(
        self,
        target: CausalLM,
        speculator: Speculator | None,
        *,
        rule: AnyRule = "token",
        impl: Impl = "auto",
        trace: Trace | None = None,
        process_draft_logits: bool = False,
    ) -> None:
        self.target = target
        self.speculator = speculator
        self._reader = speculator if isinstance(speculator, FeatureReader) else None
        self.rule: AnyRule = rule
        self.impl: Impl = impl
        self.trace = trace
        self.process_draft_logits = process_draft_logits
        self.observer: Observer | None = None
        #: where logits are filtered, sampled and verified
        self.device = ops_device(target.device, impl, trace)
        self._workspace = _new_workspace(self.device, impl)
        self.cache = target.new_cache()
        self.clock = Clock()

    def run(self, rows: RowTable) -> Round:
        """Decides at least one token of every row, in one target forward.

        Noise:
            The speculator's DRAFT draws and those of `ops.verify_chain`, at anchor num_decided;
            TARGET alone under rule `common_noise`.
        """
        begin = time.perf_counter()
        anchor = self.next_anchor(rows)
        limits = rows.max_draft_tokens()
        speculator = self.speculator if np.count_nonzero(limits) else None
        if speculator is None:
            proposal = Proposal.empty(rows.num_rows)
        else:
            proposal = self._propose(speculator, rows, anchor, limits)
        proposed = time.perf_counter()
        result = self.decide(rows, proposal)
        decided = time.perf_counter()
        if speculator is not None:
            speculator.commit(result.num_accepted_tokens)
        if self._reader is not None:
            self._observe(self._reader, anchor - 1, result)
        self.clock = self.clock.plus(draft=proposed - begin + time.perf_counter() - decided)
        return result

    def next_anchor(self, rows: RowTable) -> np.ndarray:
        """The round's anchor of each row [B]: its decided tokens, more than at its last round."""
        anchor = rows["num_decided"].copy()
        is_stuck = anchor <= rows["last_anchor"]
        assert not np.count_nonzero(is_stuck), "anchors must grow between verified rounds"
        return anchor

    def decide(self, rows: RowTable, proposal: Guesses) -> Round:
        """Scores and verifies a proposal, in one target forward."""
        begin = time.perf_counter()
        logits, states = self._forward(rows, proposal)
        forwarded = time.perf_counter()
        result = self._verify(rows, proposal, logits)
        result.states = states
        verified = time.perf_counter()
        self.clock = self.clock.plus(target=forwarded - begin, verify=verified - forwarded)
        return result

    def target_errors(self, codes: np.ndarray) -> dict[int, str]:
        """Row to message, for rows that the target's logits broke."""
        return {
            row: f"target model {self.target.name!r}: {ops.RowError(code).message}"
            for row, code in enumerate(codes.tolist())
            if code
        }

    def prefill(self, rows: RowTable, first_row: int) -> None:
        """Fills the target's cache for the rows from `first_row` on, and shows their features."""
        begin = time.perf_counter()
        self.cache.reserve(rows.num_rows, 1)
        reader = self._reader

        def show(row: int, start: list[int], counts: list[int], states: tuple[Tensor, ...]) -> None:
            assert reader is not None
            begins, at = np.array(start), np.arange(states[0].shape[1]) + 1
            columns = np.minimum(begins[:, None] + at, rows.token_ids.shape[1] - 1)
            following = rows.token_ids[row + np.arange(len(begins))[:, None], columns]
            chosen = tuple(states[layer] for layer in reader.feature_layers)
            reader.observe(Features(chosen, row, begins, np.array(counts), following))

        on_block = None if reader is None else show
        scored = score_prompts(self.target, self.cache, rows, first_row, on_block)
        texts, starts = [], []
        for row in range(first_row, rows.num_rows):
            length = int(rows.records["num_decided"][row]) - 1
            # a block that spans a scored row pads it past its tokens, not over them
            starts.append(length if row in scored else 0)
            texts.append(rows.token_ids[row, starts[-1] : length].tolist())
        if any(texts):
            self.target.prefill(
                texts, self.cache, first_row=first_row, start=starts, on_block=on_block
            )
        seconds = time.perf_counter() - begin
        self.clock = self.clock.plus(target=seconds, prefill=seconds)

    def _propose(
        self, speculator: Speculator, rows: RowTable, anchor: np.ndarray, limits: np.ndarray
    ) -> Guesses:
        sampler = self._new_sampler(rows, anchor, int(limits.max()))
        memory = TargetMemory(self.cache, anchor - 1)
        proposal = speculator.propose(
            DraftState(rows.token_ids[: rows.num_rows], anchor, limits, sampler, memory)
        )
        counts, drafts = proposal.num_draft_tokens.numpy(), proposal.token_ids.numpy()
        is_wrong = (counts < 0) | (counts > limits)
        assert not np.count_nonzero(is_wrong), "more drafts than there is room"
        if np.count_nonzero(is_absent := drafts < 0):
            is_absent &= np.arange(drafts.shape[1]) < counts[:, None]
            assert not np.count_nonzero(is_absent), "a placeholder among the drafts present"
        return proposal

    def _new_sampler(
        self, rows: RowTable, anchor: np.ndarray, num_steps: int, depths: np.ndarray | None = None
    ) -> SharedSampler | CommonSampler:
        # drafts that share the target's noise come without laws, which no other rule takes
        new_sampler = CommonSampler if self.rule == "common_noise" else SharedSampler
        return new_sampler(
            key=rows["key"],
            sample=rows["sample"],
            anchor=anchor,
            temperature=rows["temperature"],
            top_k=rows["top_k"],
            top_p=rows["top_p"],
            min_p=rows["min_p"],
            filtered=rows["is_filtered"],
            num_steps=num_steps,
            impl=self.impl,
            trace=self.trace,
            device=self.device,
            workspace=self._workspace,
            process=DraftProcessing(rows, self.impl) if self.process_draft_logits else None,
            depths=depths,
        )

    def _forward(
        self, rows: RowTable, proposal: Guesses, tree: TreeBlock | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        """Forwards [last decided token, drafts] of every row at once."""
        drafts = proposal.token_ids.numpy()
        start = rows["num_decided"] - 1
        fed = np.empty((rows.num_rows, drafts.shape[1] + 1), np.int64)
        fed[:, 0] = rows.token_ids[np.arange(rows.num_rows), start]
        fed[:, 1:] = drafts
        # placeholders and foreign ids are never read, but must be ids to be fed
        is_foreign = (drafts < 0) | (drafts >= self.target.vocab_size)
        if np.count_nonzero(is_foreign):
            fed[:, 1:][is_foreign] = 0
        logits = self.target.forward(
            torch.from_numpy(fed),
            start,
            self.cache,
            num_tokens=proposal.num_draft_tokens.numpy() + 1,
            hidden_states=self._reader is not None,
            tree=tree,
        )
        logits, states = (logits, None) if self._reader is None else logits
        if logits.shape[-1] > self.target.vocab_size:
            # ids past the vocabulary are padding of the head
            logits = logits[..., : self.target.vocab_size]
        return logits if logits.device == self.device else logits.to(self.device), states

    def _observe(self, reader: FeatureReader, start: np.ndarray, result: Round) -> None:
        """Shows the features of the fed tokens that stood, each with the token after it."""
        states = result.states
        assert states is not None
        counts = result.num_emitted_tokens.copy()
        counts[list(result.errors)] = 0
        reader.observe(
            Features(
                tuple(states[layer] for layer in reader.feature_layers),
                0,
                start,
                counts,
                result.token_ids,
            )
        )

    def _verify(self, rows: RowTable, proposal: Guesses, logits: Tensor) -> Round:
        processed = process_target(
            rows, proposal, logits, keep_raw=self.observer is not None, impl=self.impl
        )
        target_logits = self._filter(rows, processed.logits)
        verdict = self._apply_rule(rows, proposal, target_logits).cpu()
        accepted = verdict.num_accepted_tokens.numpy()
        emitted = verdict.num_emitted_tokens.numpy()
        errors = self.target_errors(verdict.error.numpy())
        errors |= processed.cut(accepted, emitted)
        for row, message in (proposal.errors or {}).items():
            errors[row] = message
            emitted[row] = accepted[row] = 0
        result = Round(
            token_ids=verdict.token_ids.numpy(),
            sources=sources_of(accepted, verdict.last_stream.numpy(), logits.shape[1]),
            num_draft_tokens=proposal.num_draft_tokens.numpy(),
            num_accepted_tokens=accepted,
            num_emitted_tokens=emitted,
            target_logits=logits,
            processed_logits=target_logits,
            errors=errors,
        )
        if self.observer is not None:
            self.observer(_observation(rows, proposal, result))
        return result

    def _apply_rule(self, rows: RowTable, proposal: Guesses, target_logits: Tensor) -> ops.Verdict:
        drafts = (proposal.token_ids.to(self.device), proposal.num_draft_tokens)
        options: dict[str, Any] = {
            "key": np.ascontiguousarray(rows["key"]),
            "anchor": rows["num_decided"],
            "sample": rows["sample"],
            "temperature": rows["temperature"],
            "forbidden": proposal.forbidden,
            "impl": self.impl,
            "trace": self.trace,
            "workspace": self._workspace,
        }
        law = proposal.draft_logits if isinstance(proposal, Proposal) else None
        if self.rule == "common_noise":
            if law is not None:
                raise ValueError(
                    "a proposal with draft_logits under rule 'common_noise', which takes no law of "
                    "the drafts: return Guesses, or use rejection_sample_method 'standard'"
                )
            return ops.verify_chain(
                target_logits, *drafts, draft_logits=None, rule="common_noise", **options
            )
        if not isinstance(proposal, Proposal):
            raise ValueError(
                f"Guesses under rule {self.rule!r}: their noise may be the target's own, so only "
                "rule 'common_noise' verifies them; return a Proposal of what `SharedSampler` drew"
            )
        return ops.verify_chain(
            target_logits,
            *drafts,
            draft_logits=law,
            draft_temperature=proposal.draft_temperature,
            rule=self.rule,
            **options,
        )

    def _filter(self, rows: RowTable, logits: Tensor) -> Tensor:
        chosen = rows["is_filtered"].nonzero()[0]
        if not len(chosen):
            return logits
        width = logits.shape[1]
        index = torch.from_numpy(chosen).to(logits.device)
        kept = ops.filter_logits(
            logits[index].flatten(0, 1),
            temperature=np.repeat(rows["temperature"][chosen], width),
            top_k=np.repeat(rows["top_k"][chosen], width),
            top_p=np.repeat(rows["top_p"][chosen], width),
            min_p=np.repeat(rows["min_p"][chosen], width),
            impl=self.impl,
        )
        filtered = logits.clone()
        filtered[index] = kept.unflatten(0, (len(chosen), width))
        return filtered


def ops_device(device: torch.device, impl: Impl, trace: Trace | None) -> torch.device:
    """Where ops run for a target on `device`: there if kernels can, or the host."""
    # a trace needs what was raced, and is kept on the host
    if trace is None and (impl == "triton" or (impl == "auto" and has_kernels(device))):
        return device
    return torch.device("cpu")


def _new_workspace(device: torch.device, impl: Impl) -> Workspace | None:
    if device.type == "cpu" and impl != "triton":
        return None
    from fairdraft.ops.triton.workspace import Workspace

    return Workspace(device)


def _observation(rows: RowTable, proposal: Guesses, result: Round) -> Observation:
    laws = proposal.draft_logits if isinstance(proposal, Proposal) else None
    return Observation(
        key=rows["key"],
        sample=rows["sample"],
        anchor=rows["num_decided"],
        temperature=rows["temperature"],
        draft_token_ids=proposal.token_ids.numpy(),
        num_draft_tokens=result.num_draft_tokens,
        draft_logits=_host(laws),
        token_ids=result.token_ids,
        num_accepted_tokens=result.num_accepted_tokens,
        num_emitted_tokens=result.num_emitted_tokens,
        raw_target_logits=result.target_logits.cpu(),
        target_logits=result.processed_logits.cpu(),
        errors=result.errors,
        is_guessed=not isinstance(proposal, Proposal),
    )


def _host(laws: Tensor | ops.SparseLogits | None) -> Tensor | ops.SparseLogits | None:
    if isinstance(laws, ops.SparseLogits):
        return ops.SparseLogits(laws.token_ids.cpu(), laws.logits.cpu())
    return None if laws is None else laws.cpu()


def sources_of(accepted: np.ndarray, last: np.ndarray, width: int) -> np.ndarray:
    """Stream code of each token of a round [B, width], from accepted drafts and the last's."""
    is_draft = np.arange(width) < accepted[:, None]
    return np.where(is_draft, int(Stream.DRAFT), last[:, None])
