"""A saved head is trained further, in its own shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from fairdraft.models import CausalLM
from fairdraft.training import KINDS, Corpus, HeadShape, Settings, train_head

SETTINGS = Settings(steps=10, batch=4, length=12, num_drafts=3, learning_rate=3e-3)
SHAPES = {"mtp": HeadShape(num_modules=3), "shared_kv_mtp": HeadShape(memory_layers=(1, 0))}


def quiet(line: str) -> None: ...


def further(
    kind: str, target: CausalLM, corpus: Corpus, folder: Path, begin_with: Path, **changes: Any
) -> dict[str, Any]:
    settings = Settings(**(SETTINGS.as_dict() | changes))
    options: dict[str, Any] = {"begin_with": begin_with, "num_prompts": 0, "say": quiet}
    return train_head(kind, target, corpus, folder, settings, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_goes_on_from_where_it_was_saved(
    kind: str, target: CausalLM, corpus: Corpus, tmp_path: Path
) -> None:
    first, same = tmp_path / "first", tmp_path / "same"
    shape = SHAPES.get(kind, HeadShape(draft_vocab_size=9))
    made = train_head(kind, target, corpus, first, SETTINGS, shape, num_prompts=0, say=quiet)
    # at no rate to speak of it is the head that was saved, drafted ids and all
    report = further(kind, target, corpus, same, first, steps=1, learning_rate=1e-12)
    saved, kept = (load_file(folder / "model.safetensors") for folder in (first, same))
    assert saved.keys() == kept.keys()
    assert all(saved[name].equal(kept[name]) for name in saved)
    configs = [json.loads((f / "config.json").read_text(encoding="utf-8")) for f in (first, same)]
    assert configs[0] == configs[1]
    assert report["points"][0]["loss"] < made["points"][0]["loss"]


def test_a_head_that_does_not_fit_is_refused(
    target: CausalLM, corpus: Corpus, tmp_path: Path
) -> None:
    first, other = tmp_path / "first", tmp_path / "other"
    settings = Settings(**(SETTINGS.as_dict() | {"steps": 1}))
    train_head("eagle3", target, corpus, first, settings, num_prompts=0, say=quiet)
    for kind, folder, changes, message in (
        ("mtp", first, {}, "holds a head of kind 'eagle3'; a training of 'mtp' begins with one"),
        ("mtp", other, {}, "holds no head; a training of 'mtp'"),
        ("eagle3", first, {"num_drafts": 2}, "trained for 3 drafts a round.*pass num_drafts = 3"),
    ):
        with pytest.raises(ValueError, match=message):
            further(kind, target, corpus, other, folder, **changes)
    with pytest.raises(ValueError, match="has its shape; leave shape out"):
        train_head("eagle3", target, corpus, other, settings, HeadShape(), begin_with=first)


def test_a_training_by_the_clock_alone_takes_its_time_and_ends_at_rate_0(
    target: CausalLM, corpus: Corpus, tmp_path: Path
) -> None:
    settings = Settings(steps=None, seconds=0.4, batch=2, length=12, num_drafts=2)
    assert settings.progress(10**9, 0.1) == 0.25
    assert settings.rate(settings.progress(10**9, 0.4)) == 0.0
    report = train_head("eagle3", target, corpus, tmp_path, settings, num_prompts=0, say=quiet)
    assert report["points"][-1]["step"] > 8
    assert report["settings"]["steps"] is None
    with pytest.raises(ValueError, match="steps and seconds are both None"):
        Settings(steps=None)
