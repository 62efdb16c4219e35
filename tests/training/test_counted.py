"""Ids that are read and not learned: which they are, and that no loss uses their laws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from fairdraft.models import CausalLM
from fairdraft.training import Corpus, HeadShape, Settings, read_corpus, train_head
from fairdraft.training.blocks import random_anchors
from fairdraft.training.head import frequent_ids, memory_layers, new_losses
from fairdraft.training.kinds import KINDS, new_head
from fairdraft.training.teacher import Teacher
from tests.training.conftest import EOS, VOCAB

LENGTH, NUM_DRAFTS = 6, 3
SETTINGS = Settings(length=LENGTH, num_drafts=NUM_DRAFTS, block_every=1, tv_weight=2.0)


def losses_and_gradient(
    kind: str, target: CausalLM, corpus: Corpus, counted: Tensor | None
) -> tuple[list[float], Tensor]:
    """Losses of two windows, and their gradient by the head's logits, [draft, window, law, id]."""
    torch.manual_seed(1)
    head: Any = new_head(kind, target, HeadShape(), torch.arange(VOCAB), NUM_DRAFTS)
    window = corpus.windows(2, SETTINGS.width, torch.Generator().manual_seed(2))
    teacher = Teacher(target, head.target_ids, memory_layers(head))
    taught = teacher(window, head.config.feature_layers, LENGTH)
    logits_of, made = head.logits, []

    def kept(*inputs: Any) -> Tensor:
        made.append(logits_of(*inputs))
        made[-1].retain_grad()
        return made[-1]

    head.logits = kept
    generator = torch.Generator().manual_seed(3)
    losses = new_losses(head, SETTINGS, compiled=False)(window, *taught, generator, counted)
    losses.total.backward()
    by_law = torch.zeros(NUM_DRAFTS, 2, SETTINGS.width - 1, VOCAB)
    anchors = random_anchors(2, LENGTH, LENGTH, torch.Generator().manual_seed(3))
    for draft in range(NUM_DRAFTS):
        if len(made) == NUM_DRAFTS:
            by_law[draft, :, draft : draft + LENGTH] = made[draft].grad
        else:
            by_law[draft, torch.arange(2)[:, None], anchors + draft - 1] = made[0].grad[:, :, draft]
    figures = [losses.total.detach()[None], losses.cross_entropy, losses.acceptance]
    return torch.cat(figures).tolist(), by_law


@pytest.mark.parametrize("kind", KINDS)
def test_laws_that_do_not_count_have_no_gradient(
    kind: str, target: CausalLM, corpus: Corpus
) -> None:
    plain, gradient = losses_and_gradient(kind, target, corpus, None)
    reached = gradient.abs().sum(-1) > 0
    every = torch.ones(2, SETTINGS.width - 1, dtype=torch.bool)
    marked, other = losses_and_gradient(kind, target, corpus, every)
    assert marked == pytest.approx(plain, rel=1e-6)
    torch.testing.assert_close(other, gradient, rtol=1e-5, atol=1e-9)
    assert reached.sum() == NUM_DRAFTS * 2 * LENGTH
    some = torch.rand(every.shape, generator=torch.Generator().manual_seed(4)) < 0.5
    _, other = losses_and_gradient(kind, target, corpus, some)
    assert torch.equal(other.abs().sum(-1) > 0, reached & some)
    # and where nothing counts nothing is learned, nor anything divided by 0
    nothing, other = losses_and_gradient(kind, target, corpus, ~every)
    assert nothing[1:] == [0.0] * (2 * NUM_DRAFTS) and not other.any()


def test_marks_stay_with_their_ids(target: CausalLM, tmp_path: Path) -> None:
    documents = [[i % VOCAB, 20, 21, i // VOCAB, i % 5] for i in range(60)]
    read = [1 + i % 4 for i in range(60)]
    corpus = Corpus.from_documents(documents, EOS, read)
    corpus.save(tmp_path / "marked.safetensors")
    assert read_corpus([tmp_path / "marked.safetensors"], None, VOCAB).digest == corpus.digest
    assert Corpus.from_documents(documents, EOS).digest != corpus.digest
    expected = {tuple(d): r for d, r in zip(documents, read, strict=True)}
    parts = corpus.split()
    assert sum(part.num_documents for part in parts) == 60
    for part in parts:
        assert part.counted is not None
        for ids, marks in zip(part.ids.view(-1, 6), part.counted.view(-1, 6), strict=True):
            unlearned = expected[tuple(ids[:5].tolist())]
            assert marks.tolist() == [i >= unlearned for i in range(6)]
        places = part.places(4, 6, torch.Generator().manual_seed(0))
        after = part.counted_after(places)
        assert after is not None
        for place, mark in zip(places.flatten().tolist(), after.flatten().tolist(), strict=True):
            assert mark == bool(part.counted[(place + 1) % len(part.ids)])
    assert corpus.prompts(60, 2) == [d[:r] for d, r in zip(documents, read, strict=True)]
    # what is read only is no reason to draft an id
    corpus = Corpus.from_documents([[20, 20, 20, 9]], EOS, [3])
    assert frequent_ids(corpus, target, 2).tolist() == [EOS, 9]


def test_text_without_marks_counts_whole_beside_marked_text(tmp_path: Path) -> None:
    Corpus.from_documents([[1, 2, 3]], EOS, [2]).save(tmp_path / "a.safetensors")
    Corpus.from_documents([[4, 5]], EOS).save(tmp_path / "b.safetensors")
    names = [tmp_path / "b.safetensors", tmp_path / "a.safetensors"]
    corpus = read_corpus(names, None, VOCAB)
    assert corpus.ids.tolist() == [4, 5, EOS, 1, 2, 3, EOS]
    assert corpus.counted_ids.tolist() == [4, 5, EOS, 3, EOS]
    assert corpus.prompts(2, 1) == [[4], [1, 2]]


def test_marks_that_do_not_fit_are_refused(target: CausalLM, tmp_path: Path) -> None:
    ids, starts = torch.arange(9, dtype=torch.int32), torch.tensor([0, 4])
    for marks, message in (
        (torch.ones(8, dtype=torch.bool), r"torch.bool \[8\]: it must be bool \[9\]"),
        (torch.ones(9), r"torch.float32 \[9\]: it must be bool"),
    ):
        with pytest.raises(ValueError, match=message):
            Corpus(ids, starts, marks)
        path = tmp_path / "a.safetensors"
        save_file({"ids": ids, "starts": starts, "counted": marks}, path)
        with pytest.raises(ValueError, match=f"no saved corpus: counted is {message}"):
            read_corpus([path], None, VOCAB)
    with pytest.raises(ValueError, match="num_read has 1 numbers for 2 documents"):
        Corpus.from_documents([[1], [2]], EOS, [0])
    with pytest.raises(ValueError, match="num_read = 2 of a document of 1 ids"):
        Corpus.from_documents([[1]], EOS, [2])
    blind = Corpus.from_documents([[1] * 20] * 60, None, [20] * 60)
    with pytest.raises(ValueError, match="no id of the training text counts"):
        train_head("eagle3", target, blind, tmp_path, SETTINGS)
