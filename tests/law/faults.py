"""Faults of the public catalogue, planted until a test ends, and some that only tests plant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fairdraft.audit import faults as catalogue
from fairdraft.audit.dense import dense_logits
from fairdraft.audit.faults import FAULTS, Planting
from fairdraft.audit.faults.noise_faults import clamped as clamped_positions
from fairdraft.ops.token_tree import chain_of

if TYPE_CHECKING:
    import pytest


@dataclass(frozen=True)
class Fault:
    """One of the catalogue's faults, for tests."""

    fault: catalogue.Fault

    def plant(self, monkeypatch: pytest.MonkeyPatch) -> Planting:
        """Plants the fault until the test ends; the result says how often it ran."""
        planting = Planting()
        monkeypatch.setattr(*self.fault.replacement(planting))
        return planting


def clamped(limit: int) -> Fault:
    """Drafts are keyed by position alone, and positions stop at `limit`."""
    return Fault(clamped_positions(limit))


#: each sibling of a tree is scored by the whole q
SIBLINGS_SCORED_ALONE = Fault(FAULTS["siblings-scored-alone"])
#: siblings, drawn without replacement, are tested by K-SEQ, which needs independent draws
SIBLINGS_BY_K_SEQ = Fault(FAULTS["siblings-by-k-seq"])
#: siblings of a tree are sorted by falling q after they were drawn
SIBLINGS_RESORTED = Fault(FAULTS["siblings-resorted"])
#: the siblings of a node are tested with one uniform
SIBLINGS_SHARE_A_COIN = Fault(FAULTS["siblings-share-a-coin"])
#: draft, replacement and bonus share the noise of their position (the bug of the public engines)
SHARED_NOISE = Fault(FAULTS["shared-noise"])
#: the test of a draft uses the address that drew it
ACCEPT_AS_DRAFT = Fault(FAULTS["accept-reads-draft"])
#: the draft of position P uses the address that sampled the token of P - 1
OFF_BY_ONE = Fault(FAULTS["off-by-one"])
#: every step of a proposal uses the address of its first
CONSTANT_OVER_STEPS = Fault(FAULTS["constant-position"])
#: the samples of a request draw the same drafts
SHARED_BY_SAMPLES = Fault(FAULTS["shared-proposal"])
#: a position that is drafted again uses the address of its first draft
REDRAWN = Fault(FAULTS["redrafted-position"])
#: all draws are named by stream and position alone
BY_POSITION = Fault(FAULTS["position-names"])
#: a rejected draft is replaced from p
P_FOR_RESIDUAL = Fault(FAULTS["replaced-from-p"])
#: under rule `block`, a path's rho is the plain product of its ratios
UNCAPPED_RATIO = Fault(FAULTS["uncapped-ratio"])
#: a forbidden draft and what follows are left out, so the row is sampled from p
FORBIDDEN_AS_ABSENT = Fault(FAULTS["masked-as-absent"])
#: a deterministic draft is verified as if it had been sampled from its softmax
SOFTMAXED_POINT_MASS = Fault(FAULTS["point-mass-as-softmax"])
#: drafts are drawn at temperature 1, whatever the request asked for
DRAWN_AT_ONE = Fault(FAULTS["drawn-at-one"])
#: drafts are filtered, and the verifier is told the unfiltered law
UNFILTERED_Q = Fault(FAULTS["unfiltered-q"])
#: a draft of q < .25 is dropped with what follows it
STOP_THAT_LOOKED = Fault(FAULTS["dropped-after-looking"])


def _of_the_drawn(original: Callable[..., Any], planting: Planting) -> Callable[..., Any]:
    def draw(self: Any, state: Any, *args: Any) -> Any:
        threshold, self.confidence_threshold = self.confidence_threshold, 0.0
        proposal = original(self, state, *args)
        self.confidence_threshold = threshold
        if not proposal.token_ids.shape[1]:
            return proposal
        temperature = torch.from_numpy(
            np.where(state.sampler.temperature, state.sampler.temperature, 1)
        )
        law = (proposal.draft_logits / temperature[:, None, None]).softmax(-1)
        drawn = law.gather(-1, proposal.token_ids.clamp(min=0)[..., None])[..., 0]
        is_kept = ((drawn >= threshold) & (proposal.token_ids >= 0)).cumprod(1)
        return replace(proposal, num_draft_tokens=is_kept.sum(1))

    return draw


#: the confidence is that of the token drawn, as where a probability is read off after sampling
CONFIDENCE_OF_THE_DRAWN = Fault(
    catalogue.Fault(
        "confidence-of-the-drawn",
        "a draft is dropped where its own probability is below the threshold",
        "fairdraft.speculators.chain.DraftChain.draw",
        _of_the_drawn,
        "q",
    )
)


def _over_the_vocabulary(original: Callable[..., Any], planting: Planting) -> Callable[..., Any]:
    def draw(self: Any, *args: Any, **options: Any) -> Any:
        proposal = original(self, *args, **options)
        laws = dense_logits(proposal.draft_logits, self.vocab_size)
        if laws is None:
            return proposal
        # what is no candidate gets the logit of the worst one
        worst = laws.masked_fill(laws == -torch.inf, torch.inf).amin(-1, keepdim=True)
        return replace(proposal, draft_logits=torch.maximum(laws, worst))

    return draw


#: drafts are drawn from a few candidates, and the verifier is told a law over the vocabulary
Q_OVER_THE_VOCABULARY = Fault(
    catalogue.Fault(
        "q-over-the-vocabulary",
        "q is told over the vocabulary for drafts drawn from candidates",
        "fairdraft.speculators.chain.DraftChain.draw",
        _over_the_vocabulary,
        "q",
    )
)


def _kept_on_empty(original: Callable[..., Any], planting: Planting) -> Callable[..., Any]:
    def replacement(inputs: Any, row: Any, residual: Any, b: int, r: int) -> Any:
        if residual.any():
            return original(inputs, row, residual, b, r)
        return int(inputs.token_ids[b, r]), 0.0

    return replacement


#: a rejected draft stands if the residual is empty; samples would show it once in 2^31 draws
KEPT_ON_EMPTY_RESIDUAL = Fault(
    catalogue.Fault(
        "kept-on-empty-residual",
        "a rejected draft stands if the residual is empty",
        "fairdraft.ops.chain.replacement",
        _kept_on_empty,
        "residual",
    )
)


def planted(name: str, title: str, function: str, make: Any) -> Fault:
    path = f"fairdraft.ops.processors.{function}"
    return Fault(catalogue.Fault(name, title, path, make, "processor"))


def _with_prompt(original: Callable[..., Any], planting: Planting) -> Callable[..., Any]:
    return lambda paths, *, of_output: original(paths, of_output=False)


def _of_first_row(original: Callable[..., Any], planting: Planting) -> Callable[..., Any]:
    def forbid(logits: Any, paths: Any, *args: Any) -> None:
        first = torch.zeros_like(logits[:, :1])
        original(first, replace(paths, tree=chain_of(0), is_read=paths.is_read[:, :1]), *args)
        logits += first

    return forbid


def _with_rejected(original: Callable[..., Any], planting: Planting) -> Callable[..., Any]:
    left: list[int] = []

    def of_round(
        token_ids: Any,
        prompt_length: Any,
        num_decided: Any,
        drafts: Any,
        *args: Any,
        **options: Any,
    ) -> Any:
        assert len(token_ids) == 1, "one sequence at a time"
        text = np.array([[*token_ids[0, : num_decided[0]], *left]])
        grown = np.array([text.shape[1]])
        left.extend(drafts[0].tolist())
        return original(text, prompt_length, grown, drafts, *args, **options)

    return of_round


#: penalties count what is decided when the round begins, and no draft of it
PENALIZED_ONCE_A_ROUND = Fault(FAULTS["penalties-once-a-round"])
#: presence and frequency count the prompt as well
PROMPT_AS_OUTPUT = planted(
    "prompt-as-output",
    "tokens of the prompt are counted as output",
    "DraftedPaths.occurrences",
    _with_prompt,
)
#: whether an end may come is decided for the round's first row and kept for all
EARLY_ENDS_ONCE_A_ROUND = planted(
    "early-ends-once-a-round",
    "min_tokens is looked at once a round",
    "forbid_early_ends",
    _of_first_row,
)
#: bad words are looked for before the round's first row, and what they forbid is kept for all
BAD_WORDS_ONCE_A_ROUND = planted(
    "bad-words-once-a-round",
    "bad words are looked for once a round",
    "forbid_bad_words",
    _of_first_row,
)
#: the same of n-grams
NGRAMS_ONCE_A_ROUND = planted(
    "ngrams-once-a-round",
    "repeated n-grams are looked for once a round",
    "forbid_repeated_ngrams",
    _of_first_row,
)
#: every draft of earlier rounds stays in the history, rejected ones and accepted ones once more
REJECTED_DRAFTS_STAY = planted(
    "rejected-drafts-stay",
    "drafts are left in the history after the round",
    "DraftedPaths.of_round",
    _with_rejected,
)


def _as_a_chain(original: Callable[..., Any], planting: Planting) -> Callable[..., Any]:
    """Every node that was created before is history: siblings and their children are counted."""
    return lambda paths, *args, **options: original(
        replace(paths, tree=chain_of(paths.tree.num_nodes)), *args, **options
    )


def _elder_sibling(original: Callable[..., Any], planting: Planting) -> Callable[..., Any]:
    """A row follows the eldest child of its parent in place of its own node."""

    def before(paths: Any, sequence: int, row: int) -> Any:
        if row:
            row = paths.tree.children[paths.tree.parents[row - 1]][0]
        return original(paths, sequence, row)

    return before


SIBLINGS_COUNTED = planted(
    "siblings-counted",
    "tokens of a node's siblings are counted in its history",
    "DraftedPaths.occurrences",
    _as_a_chain,
)
SIBLINGS_IN_TAILS = planted(
    "siblings-in-tails",
    "bad words and n-grams are looked for in the order of the nodes",
    "DraftedPaths.tails",
    _as_a_chain,
)
WRONG_BRANCH = planted(
    "wrong-branch",
    "custom processors and grammars follow the eldest sibling's branch",
    "DraftedPaths.before",
    _elder_sibling,
)
