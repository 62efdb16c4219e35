"""How often drawing on a device waits for it; transfers are counted, and no device is needed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from fairdraft import ops
from fairdraft.speculators import read_token_tree
from fairdraft.speculators.chain import DraftChain
from fairdraft.speculators.proposal import DraftState
from fairdraft.speculators.sampler import SharedSampler
from fairdraft.speculators.tree import DraftTree

WAITS = {"cpu", "item", "tolist", "nonzero", "__bool__", "__int__", "__float__"}
ROWS, VOCAB = 3, 8
#: one row has a single token, so that its later siblings are absent
LOGITS = torch.zeros(ROWS, VOCAB)
LOGITS[2, 1:] = -torch.inf


class Transfers(TorchFunctionMode):
    """Counts what would wait, of tensors that would be on a device."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in WAITS:
            self.found[func.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> DraftState:
    sample = ops.sample

    def on_device(logits: Any, at: Any, *, workspace: Any, impl: Any, **options: Any) -> Any:
        return sample(logits, at, **options)

    monkeypatch.setattr(ops, "sample", on_device)
    sampler = SharedSampler(
        key=np.arange(ROWS, dtype=np.uint64),
        sample=np.zeros(ROWS, np.int64),
        anchor=np.ones(ROWS, np.int64),
        temperature=np.ones(ROWS),
        top_k=np.zeros(ROWS, np.int64),
        top_p=np.ones(ROWS),
        min_p=np.zeros(ROWS),
        filtered=np.zeros(ROWS, bool),
        num_steps=4,
        depths=None,
    )
    # kernels draw
    vars(sampler)["_backend"] = None
    most = np.full(ROWS, 4)
    return DraftState(np.zeros((ROWS, 1), np.int64), np.ones(ROWS, np.int64), most, sampler)


def test_a_draft_waits_once(state: DraftState) -> None:
    chain = DraftChain("toy", VOCAB, greedy=False)
    with Transfers() as transfers:
        proposal = chain.draw(state, np.full(ROWS, 3), lambda step, before, rows: LOGITS[rows])
    assert transfers.found == {"cpu": 3}
    assert proposal.num_draft_tokens.tolist() == [3] * ROWS and (proposal.token_ids >= 0).all()


def test_a_level_of_a_tree_waits_once_more_than_it_has_siblings(state: DraftState) -> None:
    tree = read_token_tree([2, 1])
    state.sampler.depths = tree.depths
    drawing = DraftTree("toy", tree, VOCAB, greedy=False)
    with Transfers() as transfers:
        proposal = drawing.draw(
            state, np.full(ROWS, tree.num_nodes), lambda depth, drafts, rows, nodes: LOGITS[rows]
        )
    assert transfers.found == {"cpu": (1 + 2) + (1 + 1)}
    is_there = proposal.token_ids >= 0
    assert is_there.tolist() == [[True] * 4, [True] * 4, [True, False, True, False]]
