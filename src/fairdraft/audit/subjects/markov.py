"""Target and draft as tables of logits by the last token, and one round of decoding with them.

Drafts come from the shared sampler and verdicts from `ops.verify_chain` or `ops.verify_tree`, so
whatever is wrong in the production path is wrong here too. Axes: N texts in step, K drafts (of a
tree, its depth), S states, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch

from fairdraft import ops
from fairdraft.noise import Trace
from fairdraft.ops import PLACEHOLDER_TOKEN_ID, Impl
from fairdraft.ops.sample import Method
from fairdraft.ops.token_tree import TokenTree
from fairdraft.ops.verify import ExactRule
from fairdraft.speculators import CommonSampler, Drawn, Guesses, Proposal, SharedSampler

__all__ = [
    "Decoding",
    "MarkovPair",
    "Round",
    "Rows",
    "contexts",
    "look_up",
    "new_sampler",
    "play",
    "propose",
    "reference_law",
    "verify",
]


@dataclass(frozen=True)
class Decoding:
    """How tokens are decoded.

    Attributes:
        num_drafts: K, drafts a round; of a tree, its depth.
        temperature: Of the request, so of target and draft.
        top_k, top_p, min_p: Filters of the request; 0, 1 and 0 are off.
        is_greedy: Drafts are the draft's best tokens: point masses.
        forbids: Drafts that the target's table excludes (-inf) are marked as forbidden.
        rule: Verification rule, a chain's or "tree"; under "common_noise" drafts are guesses,
            without a law.
        breadths: Under rule "tree", the children of a node by depth [K]; empty for chains.
        method: Sampler of every token, "race" or "gumbel".
        impl: Implementation of the ops.
    """

    num_drafts: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    is_greedy: bool = False
    forbids: bool = False
    rule: ExactRule | Literal["tree"] = "token"
    breadths: tuple[int, ...] = ()
    method: Method = "race"
    impl: Impl = "auto"

    def __post_init__(self) -> None:
        depth = self.num_drafts if self.rule == "tree" else 0
        if len(self.breadths) != depth:
            raise ValueError(
                f"breadths = {self.breadths} under rule {self.rule!r} with num_drafts = "
                f"{self.num_drafts}: give one a depth under rule 'tree', and none otherwise"
            )
        if self.rule == "tree" and (self.is_filtered or self.forbids or self.method != "race"):
            raise ValueError("rule 'tree' is played without filters, marks and other samplers")

    @property
    def is_filtered(self) -> bool:
        """Whether any filter is on."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0


@dataclass(frozen=True)
class MarkovPair:
    """A target and a draft whose next token depends on the last one.

    Attributes:
        target_logits, draft_logits: float32 [S, V]; S is V, or 1 for no dependence at all.
    """

    target_logits: np.ndarray
    draft_logits: np.ndarray

    def __post_init__(self) -> None:
        target, draft = np.atleast_2d(self.target_logits), np.atleast_2d(self.draft_logits)
        object.__setattr__(self, "target_logits", np.ascontiguousarray(target, np.float32))
        object.__setattr__(self, "draft_logits", np.ascontiguousarray(draft, np.float32))
        size = self.vocab_size
        for name, table in (("target", target), ("draft", draft)):
            if table.ndim != 2 or table.shape[1] != size or table.shape[0] not in (1, size):
                raise ValueError(
                    f"{name}_logits have shape {table.shape}; give {(1, size)} or {(size, size)}"
                )

    @classmethod
    def from_laws(cls, target: Any, draft: Any) -> MarkovPair:
        """Takes probabilities [V] or [S, V] in place of logits."""
        with np.errstate(divide="ignore"):
            return cls(np.log(np.asarray(target, float)), np.log(np.asarray(draft, float)))

    @classmethod
    def shuffled(cls, target: Any, draft: Any, seed: int) -> MarkovPair:
        """Carries two laws [V] around by one random permutation for each last token."""
        p, q = np.asarray(target, float), np.asarray(draft, float)
        generator = np.random.default_rng(seed)
        orders = [generator.permutation(len(p)) for _ in range(len(p))]
        return cls.from_laws(
            np.stack([p[order] for order in orders]), np.stack([q[order] for order in orders])
        )

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.target_logits.shape[1]

    @cached_property
    def target_table(self) -> torch.Tensor:
        """The target's logits as a tensor."""
        return torch.from_numpy(self.target_logits)

    @cached_property
    def draft_table(self) -> torch.Tensor:
        """The draft's logits as a tensor."""
        return torch.from_numpy(self.draft_logits)

    def target_law(self, decoding: Decoding, *, filtered: bool = True) -> np.ndarray:
        """The law that tokens should follow, float64 [S, V]."""
        return self._law(self.target_logits, decoding, filtered)

    def draft_law(self, decoding: Decoding, *, filtered: bool = True) -> np.ndarray:
        """The law that drafts follow, float64 [S, V]."""
        return self._law(self.draft_logits, decoding, filtered)

    def raw_draft_law(self) -> np.ndarray:
        """The draft's law before temperature and filters, float64 [S, V]."""
        return self._law(self.draft_logits, Decoding(0), False)

    def _law(self, table: np.ndarray, decoding: Decoding, filtered: bool) -> np.ndarray:
        d = decoding
        filters = (d.top_k, d.top_p, d.min_p) if filtered else (0, 1.0, 0.0)
        return reference_law(table, d.temperature, *filters)


def reference_law(
    logits: np.ndarray, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> np.ndarray:
    """Float64 law of float32 logits [S, V], by NumPy alone.

    Shares nothing with the ops, so that a fault planted there does not move what it is judged by.
    Filters as `ops.filter_logits` defines them; 0 is greedy, ties to the lowest id.
    """
    values = np.asarray(logits, np.float64)
    if temperature == 0:
        return np.eye(values.shape[-1])[values.argmax(-1)]
    if 0 < top_k < values.shape[-1]:
        limit = np.sort(values, axis=-1)[..., -top_k, None]
        values = np.where(values >= limit, values, -np.inf)
    weights = np.exp((values - values.max(-1, keepdims=True)) / temperature)
    law = weights / weights.sum(-1, keepdims=True)
    is_kept = np.ones(law.shape, np.bool_)
    if top_p < 1:
        order = np.argsort(-law, axis=-1, kind="stable")
        ordered = np.take_along_axis(law, order, axis=-1)
        before = np.cumsum(ordered, axis=-1) - ordered
        np.put_along_axis(is_kept, order, before < top_p, axis=-1)
    if min_p > 0:
        is_kept &= law >= min_p * law.max(-1, keepdims=True)
    law = np.where(is_kept, law, 0.0)
    return law / law.sum(-1, keepdims=True)


@dataclass(frozen=True)
class Rows:
    """The texts of one round, each in a row of its own.

    Attributes:
        key: Request keys [N], uint64.
        sample: Which of the request's samples [N].
        anchor: Decided tokens, prompt included [N].
        last: The last decided token [N].
        num_drafts: Drafts wanted in this round [N], 0..K.
    """

    key: np.ndarray
    sample: np.ndarray
    anchor: np.ndarray
    last: np.ndarray
    num_drafts: np.ndarray

    def __len__(self) -> int:
        return len(self.key)


@dataclass(frozen=True)
class Round:
    """What a round decided, as NumPy arrays.

    Attributes:
        token_ids: Accepted drafts and one token more [N, K + 1], padded with -1.
        num_accepted: [N].
        draft_ids: Drafts [N, K], padded with -1.
        num_drafts: Drafts present [N].
        error: `ops.RowError` codes [N].
    """

    token_ids: np.ndarray
    num_accepted: np.ndarray
    draft_ids: np.ndarray
    num_drafts: np.ndarray
    error: np.ndarray


def play(pair: MarkovPair, decoding: Decoding, rows: Rows, trace: Trace | None = None) -> Round:
    """Drafts and verifies one round of every row; trees are `markov_tree`'s."""
    proposal = propose(pair, decoding, rows, trace)
    verdict = verify(pair, decoding, rows, proposal, trace)
    return Round(
        verdict.token_ids.numpy(),
        verdict.num_accepted_tokens.numpy(),
        proposal.token_ids.numpy(),
        proposal.num_draft_tokens.numpy(),
        verdict.error.numpy(),
    )


def propose(
    pair: MarkovPair, decoding: Decoding, rows: Rows, trace: Trace | None = None
) -> Guesses:
    """Draws the drafts of a round through the sampler of its rule, step by step."""
    count, depth, size = len(rows), decoding.num_drafts, pair.vocab_size
    if not depth:
        return Proposal.empty(count)
    sampler = new_sampler(decoding, rows, trace)
    drafts = torch.full((count, depth), PLACEHOLDER_TOKEN_ID)
    laws = torch.zeros((count, depth, size))
    last = torch.from_numpy(rows.last)
    for step in range(1, depth + 1):
        chosen = np.flatnonzero(rows.num_drafts >= step)
        if not len(chosen):
            break
        at = slice(None) if len(chosen) == count else torch.from_numpy(chosen)
        logits = look_up(pair.draft_table, last[at])
        drawn = sampler.draw(logits, step, chosen, greedy=decoding.is_greedy)
        drafts[at, step - 1] = drawn.token_ids
        if isinstance(drawn, Drawn):
            laws[at, step - 1] = drawn.logits
        last = drafts[:, step - 1]
    forbidden = (
        look_up(pair.target_table, contexts(rows, drafts)[:, :-1]).gather(
            2, drafts.clamp(min=0)[..., None]
        )[..., 0]
        == -torch.inf
        if decoding.forbids
        else None
    )
    given = drafts, torch.from_numpy(rows.num_drafts)
    if decoding.rule == "common_noise":
        return Guesses(*given, forbidden=forbidden)
    return Proposal(*given, draft_logits=laws, forbidden=forbidden)


def verify(
    pair: MarkovPair, decoding: Decoding, rows: Rows, proposal: Guesses, trace: Trace | None = None
) -> ops.Verdict:
    """Verifies a round's drafts against the target's rows, filtered along the drafted path."""
    target = look_up(pair.target_table, contexts(rows, proposal.token_ids))
    if decoding.is_filtered:
        kept = ops.filter_logits(
            target.flatten(0, 1),
            temperature=decoding.temperature,
            top_k=decoding.top_k,
            top_p=decoding.top_p,
            min_p=decoding.min_p,
            impl=decoding.impl,
        )
        target = kept.view_as(target)
    assert decoding.rule != "tree", "trees are played apart"
    given = target, proposal.token_ids, proposal.num_draft_tokens
    options: dict[str, Any] = {
        "key": rows.key,
        "anchor": rows.anchor,
        "sample": rows.sample,
        "temperature": decoding.temperature,
        "forbidden": proposal.forbidden,
        "method": decoding.method,
        "impl": decoding.impl,
        "trace": trace,
    }
    if decoding.rule == "common_noise":
        return ops.verify_chain(*given, draft_logits=None, rule="common_noise", **options)
    assert isinstance(proposal, Proposal), "the other rules' sampler gives laws"
    return ops.verify_chain(
        *given,
        draft_logits=proposal.draft_logits,
        point_mass=torch.full((len(rows),), decoding.is_greedy),
        rule=decoding.rule,
        **options,
    )


def contexts(rows: Rows, drafts: torch.Tensor) -> torch.Tensor:
    """The token before each row of the round [N, drafts + 1]; 0 behind absent drafts."""
    return torch.cat([torch.from_numpy(rows.last)[:, None], drafts.clamp(min=0)], dim=1)


def look_up(table: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """Rows of a table by the token before [..., V]."""
    if len(table) == 1:
        return table[0].expand(*last.shape, -1)
    return table[last]


def new_sampler(
    decoding: Decoding, rows: Rows, trace: Trace | None, tree: TokenTree | None = None
) -> SharedSampler | CommonSampler:
    """The sampler of a round's drafts, of a chain or of a tree."""
    count = len(rows)
    kind = CommonSampler if decoding.rule == "common_noise" else SharedSampler
    return kind(
        key=rows.key,
        sample=rows.sample,
        anchor=rows.anchor,
        temperature=np.full(count, decoding.temperature),
        top_k=np.full(count, decoding.top_k),
        top_p=np.full(count, decoding.top_p),
        min_p=np.full(count, decoding.min_p),
        filtered=np.full(count, decoding.is_filtered),
        num_steps=decoding.num_drafts if tree is None else tree.num_nodes,
        depths=None if tree is None else tree.depths,
        impl=decoding.impl,
        method=decoding.method,
        trace=trace,
    )
