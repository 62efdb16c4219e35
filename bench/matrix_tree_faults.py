"""The planted faults of rule `tree` in the equivalence matrix, by parameter."""

from __future__ import annotations

from typing import Any

import torch
from matrix_faults import FILTERED_BEFORE, Planted

from fairdraft.audit.faults import FAULTS, Fault, Planting
from fairdraft.ops import PLACEHOLDER_TOKEN_ID
from tests.law import faults

__all__ = ["PLANTED_TREE"]


def _at_inner_nodes(original: Any, planting: Planting) -> Any:
    def add_biases(logits: Any, paths: Any, plans: Any) -> None:
        leaves = [r for r, below in enumerate(paths.tree.children) if not below]
        kept = logits[:, leaves].clone()
        original(logits, paths, plans)
        if paths.width > 1:
            logits[:, leaves] = kept

    return add_biases


def _without_masked(original: Any, planting: Planting) -> Any:
    def verify_tree(logits: Any, token_ids: Any, parents: Any, *args: Any, **options: Any) -> Any:
        at = token_ids.clamp(min=0)
        is_masked = logits[:, parents].gather(-1, at[..., None])[..., 0] == -torch.inf
        left = token_ids.masked_fill(is_masked, PLACEHOLDER_TOKEN_ID)
        return original(logits, left, parents, *args, **options)

    return verify_tree


BIASED_AT_INNER_NODES = Fault(
    "biased-at-inner-nodes",
    "a logit bias applies to the rows that test drafts, and not to those of the leaves",
    "fairdraft.engine.processing.order._add_biases",
    _at_inner_nodes,
    "processor",
)
MASKED_SIBLINGS_ABSENT = Fault(
    "masked-siblings-absent",
    "masked candidates are taken out of the tree before they are tested",
    "fairdraft.ops.verify_tree",
    _without_masked,
    "processor",
)

#: by parameter: rows that follow another path of the tree, and errors among siblings
PLANTED_TREE: dict[str, tuple[Planted, ...]] = {
    parameter: (Planted(fault),)
    for parameter, fault in {
        "repetition_penalty": FAULTS["penalties-once-a-round"],
        "presence_penalty": faults.SIBLINGS_COUNTED.fault,
        "frequency_penalty": FAULTS["penalties-once-a-round"],
        "logit_bias": BIASED_AT_INNER_NODES,
        "allowed_token_ids": MASKED_SIBLINGS_ABSENT,
        "bad_words": faults.SIBLINGS_IN_TAILS.fault,
        "bad_words_ids": faults.SIBLINGS_IN_TAILS.fault,
        "no_repeat_ngram_size": faults.SIBLINGS_IN_TAILS.fault,
        "min_tokens": faults.EARLY_ENDS_ONCE_A_ROUND.fault,
        "logits_processors": faults.WRONG_BRANCH.fault,
        "top_k, after penalties": FILTERED_BEFORE,
        "all together": faults.WRONG_BRANCH.fault,
        "structured_outputs": MASKED_SIBLINGS_ABSENT,
    }.items()
}
PLANTED_TREE["presence_penalty"] += (Planted(FAULTS["siblings-resorted"]),)
# the readable walk is slow, so the draft likes the id that is masked, and few texts show it
PLANTED_TREE["allowed_token_ids"] += (
    Planted(
        FAULTS["siblings-scored-alone"], effect=0.2, impl="reference", q=(0.05, 0.73, 0.17, 0.05)
    ),
)
PLANTED_TREE["structured_outputs"] += (Planted(faults.WRONG_BRANCH.fault),)
