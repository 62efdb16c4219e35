"""One round whose drafts are trees: one target forward over all nodes, then the accepted path.

Axes: B rows, N nodes, D depth, V the target's vocabulary.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor

from fairdraft import ops
from fairdraft.engine.observation import Observation, ObservedTree
from fairdraft.engine.processing.target import ProcessedRows, process_target
from fairdraft.engine.round import Round, RoundRunner, sources_of
from fairdraft.engine.rows import RowTable
from fairdraft.models import CausalLM
from fairdraft.models.blocks import TreeBlock, keep_path
from fairdraft.models.probe import check_trees
from fairdraft.noise import Trace
from fairdraft.ops import PLACEHOLDER_TOKEN_ID, Impl
from fairdraft.speculators import (
    DraftState,
    Guesses,
    Speculator,
    TokenTree,
    TreeProposal,
    TreeSpeculator,
)


class TreeRoundRunner(RoundRunner):
    """Runs rounds of rule `tree`, eagerly.

    What comes out of a round is what its path decided, laid out as a chain's: logits, states and
    counts by depth.
    """

    def __init__(
        self,
        target: CausalLM,
        speculator: Speculator | None,
        *,
        impl: Impl = "auto",
        trace: Trace | None = None,
    ) -> None:
        # a round without drafts is the same under each rule
        super().__init__(target, speculator, rule="token", impl=impl, trace=trace)
        check_trees(target)

    def decide(self, rows: RowTable, proposal: Guesses) -> Round:
        """Scores and verifies a tree a row, and keeps what is cached of the path."""
        if not isinstance(proposal, TreeProposal):
            assert not proposal.num_draft_tokens.any(), "drafts that are no tree under rule 'tree'"
            return super().decide(rows, proposal)
        begin = time.perf_counter()
        tree = self._tree.first(proposal.token_ids.shape[1])
        num_decided = rows["num_decided"].copy()
        block = TreeBlock(num_decided, tree.depths, tree.is_seen, first=0)
        logits, states = self._forward(rows, proposal, block)
        forwarded = time.perf_counter()
        is_watched = self.observer is not None
        processed = process_target(
            rows, proposal, logits, keep_raw=is_watched, impl=self.impl, tree=tree
        )
        filtered = self._filter(rows, processed.logits)
        verdict = self._verify_tree(rows, proposal, filtered).cpu()
        path, accepted = verdict.path.numpy(), verdict.num_accepted_tokens.numpy()
        errors = self._errors(proposal, processed, verdict)
        keep_path(self.cache, num_decided, path, accepted)
        if isinstance(self.speculator, TreeSpeculator):
            self.speculator.commit_path(path, accepted)
        result = self._laid_out(proposal, tree, verdict, (logits, filtered), states, errors)
        if self.observer is not None:
            self.observer(_observation(rows, proposal, tree, verdict, result, filtered))
        verified = time.perf_counter()
        self.clock = self.clock.plus(target=forwarded - begin, verify=verified - forwarded)
        return result

    @property
    def _tree(self) -> TokenTree:
        assert isinstance(self.speculator, TreeSpeculator)
        return self.speculator.tree

    def _propose(
        self, speculator: Speculator, rows: RowTable, anchor: np.ndarray, limits: np.ndarray
    ) -> Guesses:
        tree = self._tree
        sampler = self._new_sampler(rows, anchor, tree.num_nodes, tree.depths)
        # a node is scored in a slot of its own
        room = self.target.max_model_len - anchor
        state = DraftState(rows.token_ids[: rows.num_rows], anchor, limits, sampler, max_nodes=room)
        proposal = speculator.propose(state)
        counts = proposal.num_draft_tokens.numpy()
        most = np.minimum(tree.num_nodes_to(limits), room)
        assert (counts >= 0).all() and (counts <= most).all(), "more nodes than there is room"
        return proposal

    def _verify_tree(
        self, rows: RowTable, proposal: TreeProposal, logits: Tensor
    ) -> ops.TreeVerdict:
        return ops.verify_tree(
            logits,
            proposal.token_ids.to(self.device),
            proposal.parents,
            proposal.num_draft_tokens,
            draft_logits=proposal.draft_logits,
            draft_temperature=proposal.draft_temperature,
            key=np.ascontiguousarray(rows["key"]),
            anchor=rows["num_decided"],
            sample=rows["sample"],
            temperature=rows["temperature"],
            forbidden=proposal.forbidden,
            draft_stats=proposal.draft_stats,
            impl=self.impl,
            trace=self.trace,
            workspace=self._workspace,
        )

    def _errors(
        self, proposal: TreeProposal, processed: ProcessedRows, verdict: ops.TreeVerdict
    ) -> dict[int, str]:
        """Row to message, for rows that fail; their walks are cut in place."""
        accepted, emitted = verdict.num_accepted_tokens.numpy(), verdict.num_emitted_tokens.numpy()
        errors = self.target_errors(verdict.error.numpy())
        errors |= processed.cut(accepted, emitted, verdict.path.numpy())
        for row, message in (proposal.errors or {}).items():
            errors[row] = message
            emitted[row] = accepted[row] = 0
        return errors

    def _laid_out(
        self,
        proposal: TreeProposal,
        tree: TokenTree,
        verdict: ops.TreeVerdict,
        logits: tuple[Tensor, Tensor],
        states: tuple[Tensor, ...] | None,
        errors: dict[int, str],
    ) -> Round:
        """The round by depth: row j of its logits and states is the one that decided token j."""
        accepted, emitted = verdict.num_accepted_tokens.numpy(), verdict.num_emitted_tokens.numpy()
        width, nodes = verdict.path.shape[1], verdict.path
        is_there = proposal.token_ids.numpy() != PLACEHOLDER_TOKEN_ID
        is_there &= np.arange(tree.num_nodes) < proposal.num_draft_tokens.numpy()[:, None]
        return Round(
            token_ids=verdict.token_ids.numpy(),
            sources=sources_of(accepted, verdict.last_stream.numpy(), width),
            num_draft_tokens=(is_there * tree.depths[1:]).max(1),
            num_accepted_tokens=accepted,
            num_emitted_tokens=emitted,
            target_logits=_at(logits[0], nodes),
            processed_logits=_at(logits[1], nodes),
            errors=errors,
            states=None if states is None else tuple(_at(state, nodes) for state in states),
        )


def _at(values: Tensor, nodes: Tensor) -> Tensor:
    """Values [B, N + 1, ...] at nodes [B, D]; junk where there is none, -1."""
    at = nodes.clamp(min=0).to(values.device)
    return values[torch.arange(len(at), device=at.device)[:, None], at]


def _observation(
    rows: RowTable,
    proposal: TreeProposal,
    tree: TokenTree,
    verdict: ops.TreeVerdict,
    result: Round,
    target_logits: Tensor,
) -> Observation:
    tested, laws = verdict.first_child[:, :-1], proposal.draft_logits
    assert not isinstance(laws, ops.SparseLogits), "trees are drawn from dense laws"
    laws = None if laws is None else laws.cpu()
    drafted = _at(proposal.token_ids, tested - 1).masked_fill(tested == 0, PLACEHOLDER_TOKEN_ID)
    return Observation(
        key=rows["key"],
        sample=rows["sample"],
        anchor=rows["num_decided"],
        temperature=rows["temperature"],
        draft_token_ids=drafted.numpy(),
        num_draft_tokens=(tested > 0).sum(1).numpy(),
        draft_logits=None if laws is None else _at(laws, tested - 1),
        token_ids=result.token_ids,
        num_accepted_tokens=result.num_accepted_tokens,
        num_emitted_tokens=result.num_emitted_tokens,
        raw_target_logits=result.target_logits.cpu(),
        target_logits=result.processed_logits.cpu(),
        errors=result.errors,
        tree=ObservedTree(
            tree,
            proposal.token_ids.numpy(),
            proposal.num_draft_tokens.numpy(),
            laws,
            target_logits.cpu(),
        ),
    )
