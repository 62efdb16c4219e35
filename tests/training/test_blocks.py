"""Heads that draft blocks: the loss is that of drafting from every anchor, and they learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from fairdraft.models import CausalLM
from fairdraft.speculators.heads import Dflash2Head, DflashHead, DsparkHead, kind_of_head
from fairdraft.training import Corpus, HeadShape, Settings, train_head
from fairdraft.training.blocks import block_losses, block_outputs, random_anchors
from fairdraft.training.head import frequent_ids
from fairdraft.training.kinds import new_head
from fairdraft.training.teacher import Teacher
from tests.speculators.small_heads import law_of
from tests.training.conftest import VOCAB

LENGTH, NUM_DRAFTS = 6, 3


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("dflash", HeadShape(num_layers=2, num_key_value_heads=1)),
        ("dflash", HeadShape((2,), 9)),
        ("dspark", HeadShape(markov_rank=4, draft_vocab_size=9)),
        ("dflash2", HeadShape(selector_rank=4, selector_top_k=5, draft_vocab_size=9)),
    ],
)
def test_losses_are_those_of_drafting_from_every_anchor(
    kind: str, shape: HeadShape, target: CausalLM, corpus: Corpus
) -> None:
    """Two windows; the target's states before the anchor only, and no other block."""
    train, _ = corpus.split()
    ids = frequent_ids(train, target, shape.draft_vocab_size)
    torch.manual_seed(1)
    head: Any = new_head(kind, target, shape, ids, NUM_DRAFTS).eval()
    if isinstance(head, Dflash2Head):
        stir(head)
    window = train.windows(2, LENGTH + NUM_DRAFTS, torch.Generator().manual_seed(2))
    states, probs = Teacher(target, ids)(window, head.config.feature_layers, LENGTH)
    angles = head.angles(torch.arange(LENGTH + NUM_DRAFTS + 1)[None])
    anchors = torch.tensor([[1, 3, LENGTH], [5, 2, 4]])
    losses = block_losses(head, window, anchors, states, probs, angles, decay=0.5, tv_weight=2.0)
    outputs = block_outputs(head, window, anchors, states, angles)
    expected = torch.zeros(NUM_DRAFTS, 3)
    for row, text in enumerate(window.tolist()):
        for block, anchor in enumerate(anchors[row].tolist()):
            for draft in range(NUM_DRAFTS):
                decided, drafts = text[: anchor + 1], text[anchor + 1 : anchor + 1 + draft]
                with torch.no_grad():
                    law = law_of(target.model, head, decided, drafts)
                    log_q, kept = law.log_softmax(-1), law.isfinite()
                    prefix = torch.tensor([[*decided, *drafts]])
                    p = target.model(prefix).logits[0, -1].softmax(-1)[ids]
                overlap = torch.minimum(p, log_q.exp()).sum()
                found = [-(p * log_q)[kept].sum(), overlap, torch.zeros(())]
                if isinstance(head, DsparkHead):
                    before = head.before(torch.tensor([*decided, *drafts][-1]))
                    odds = head.acceptance_logits(outputs[row, block, draft], before)
                    found[2] = binary_cross_entropy_with_logits(odds, overlap)
                if isinstance(head, Dflash2Head):
                    unary = head.logits(outputs[row, block, draft]).log_softmax(-1)
                    found[2] = -(p * unary).sum()
                expected[draft] += torch.stack(found) / 6
    torch.testing.assert_close(losses.cross_entropy, expected[:, 0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(losses.acceptance, expected[:, 1], rtol=1e-4, atol=1e-5)
    decayed = torch.tensor([1, 0.5, 0.25])
    total = (decayed * (expected[:, 0] + 2 * (1 - expected[:, 1]) + expected[:, 2])).sum()
    torch.testing.assert_close(losses.total.detach(), total, rtol=1e-4, atol=1e-5)


def stir(head: Dflash2Head) -> None:
    """Gives convolutions and scores that begin without effect some."""
    with torch.no_grad():
        for name, parameter in head.own_parameters().items():
            if "conv" in name or "candidate_selector" in name:
                parameter.normal_(0.0, 0.5)


def test_candidates_begin_without_scores_and_all_parts_learn(
    target: CausalLM, corpus: Corpus
) -> None:
    train, _ = corpus.split()
    shape = HeadShape(selector_rank=4, selector_top_k=5)
    head: Any = new_head("dflash2", target, shape, torch.arange(VOCAB), NUM_DRAFTS)
    plain: Any = new_head("dflash", target, HeadShape(), torch.arange(VOCAB), NUM_DRAFTS)
    plain.load_state_dict(head.state_dict(), strict=False)
    window = train.windows(2, LENGTH + NUM_DRAFTS, torch.Generator().manual_seed(2))
    states, probs = Teacher(target, torch.arange(VOCAB))(window, (1, 1, 2), LENGTH)
    angles = head.angles(torch.arange(LENGTH + NUM_DRAFTS + 1)[None])
    anchors = torch.tensor([[1, 3], [5, 2]])
    outputs = [
        block_outputs(any_head, window, anchors, states, angles) for any_head in (head, plain)
    ]
    torch.testing.assert_close(*outputs)
    candidates = outputs[0].new_zeros(2, 2, NUM_DRAFTS, 5).long()
    selector = head.candidate_selector
    assert not selector.edges(selector.project(outputs[0]), window[:, :2, None], candidates).any()
    stir(head)
    losses = block_losses(head, window, anchors, states, probs, angles, decay=1.0, tv_weight=1.0)
    losses.total.backward()
    for name, parameter in head.own_parameters().items():
        assert parameter.grad is not None and float(parameter.grad.abs().sum()) > 0, name


def test_the_guess_of_acceptance_does_not_move_the_law(target: CausalLM, corpus: Corpus) -> None:
    """Gradients of all but the guess itself are those of a head without one."""
    train, _ = corpus.split()
    window = train.windows(2, LENGTH + NUM_DRAFTS, torch.Generator().manual_seed(2))
    gradients = []
    for has_guess in (True, False):
        torch.manual_seed(1)
        head: Any = new_head("dspark", target, HeadShape(markov_rank=4), torch.arange(VOCAB), 3)
        if not has_guess:
            head.confidence_head = None
        states, probs = Teacher(target, torch.arange(VOCAB))(window, (1, 1, 2), LENGTH)
        angles = head.angles(torch.arange(LENGTH + 4)[None])
        anchors = random_anchors(2, LENGTH, 2, torch.Generator().manual_seed(3))
        losses = block_losses(
            head, window, anchors, states, probs, angles, decay=1.0, tv_weight=1.0
        )
        losses.total.backward()
        gradients.append(
            {name: p.grad for name, p in head.own_parameters().items() if "confidence" not in name}
        )
        guess = head.confidence_head
        assert guess is None or float(guess.proj.weight.grad.abs().sum()) > 0
    for name, gradient in gradients[1].items():
        assert torch.equal(gradients[0][name], gradient), name
        assert float(gradient.abs().sum()) > 0, name


def test_anchors_are_all_different_and_reach_both_ends() -> None:
    anchors = random_anchors(200, LENGTH, 3, torch.Generator().manual_seed(0))
    assert all(len(set(row)) == 3 for row in anchors.tolist())
    assert set(anchors.flatten().tolist()) == set(range(1, LENGTH + 1))


def test_a_trained_head_is_written_measured_and_drafts_better(
    target: CausalLM, corpus: Corpus, tmp_path: Path
) -> None:
    settings = Settings(
        steps=30, batch=8, length=12, num_drafts=2, block_every=2, learning_rate=3e-3
    )
    shape = HeadShape(markov_rank=4)
    report = train_head(
        "dspark", target, corpus, tmp_path, settings, shape, num_prompts=1, say=lambda line: None
    )
    assert kind_of_head(tmp_path) == "dspark"
    first, last = report["points"][0], report["points"][-1]
    assert last["loss"] < first["loss"]
    assert sum(last["acceptance"]) > sum(first["acceptance"])
    assert [len(m["by_draft"]) for m in report["acceptance"]] == [2, 2, 2]


def test_shapes_of_other_kinds_are_refused(target: CausalLM) -> None:
    ids = torch.arange(VOCAB)
    for kind in ("dflash", "dflash2", "dspark"):
        with pytest.raises(ValueError, match="num_modules = 2: a D.* head has layers, not modules"):
            new_head(kind, target, HeadShape(num_modules=2), ids, 2)
        with pytest.raises(ValueError, match="has the states 0 to 2"):
            new_head(kind, target, HeadShape((3,)), ids, 2)
    for shape, message in (
        (HeadShape(markov_rank=4), "markov_rank = 4: a DFlash2 head has no such bias"),
        (HeadShape(selector_top_k=24), "selector_top_k = 24; it must be from 1 to 23"),
    ):
        with pytest.raises(ValueError, match=message):
            new_head("dflash2", target, shape, ids, 2)
    with pytest.raises(ValueError, match="markov_rank = 4: a DFlash head has no such bias"):
        new_head("dflash", target, HeadShape(markov_rank=4), ids, 2)
    head = new_head("dflash", target, HeadShape(), ids, 2)
    assert isinstance(head, DflashHead) and head.config.block_size == 3
