"""A head learns, resumes where it was killed, and computes in training what it does in use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from fairdraft.cli.app import app
from fairdraft.cli.train import COMMANDS
from fairdraft.engine.config import HEADS
from fairdraft.models import CausalLM
from fairdraft.speculators.heads import kind_of_head
from fairdraft.training import (
    KINDS,
    Corpus,
    HeadShape,
    Settings,
    read_corpus,
    train_head,
)
from fairdraft.training.head import frequent_ids, memory_layers, new_losses
from fairdraft.training.kinds import new_head
from fairdraft.training.loop import STATE, Loop
from fairdraft.training.teacher import Teacher
from tests.engine.toys import tiny_llama, word_tokenizer
from tests.speculators.small_heads import law_of
from tests.training.conftest import EOS, VOCAB

SETTINGS = Settings(steps=6, batch=2, length=12, num_drafts=3, learning_rate=3e-3)


def quiet(line: str) -> None: ...


def trained(target: CausalLM, corpus: Corpus, folder: Path, **changes: Any) -> dict[str, Any]:
    settings = Settings(**(SETTINGS.as_dict() | changes.pop("settings", {})))
    options: dict[str, Any] = {"num_prompts": 0} | changes
    kind = options.pop("kind", "eagle3")
    return train_head(kind, target, corpus, folder, settings, say=quiet, **options)


@pytest.mark.parametrize(
    "shape",
    [
        HeadShape(),
        HeadShape((2,), 9),
        HeadShape(num_modules=1),
        HeadShape(num_modules=3, draft_vocab_size=9),
        HeadShape(memory_layers=(1,)),
        HeadShape(memory_layers=(1, 0), draft_vocab_size=9),
    ],
)
def test_losses_are_those_of_drafting_from_every_position(
    shape: HeadShape, target: CausalLM, corpus: Corpus
) -> None:
    """Each slot and step against drafting from scratch: the target's states up to there only.

    Once over all laws, once over those before the ids that count.
    """
    train, _ = corpus.split()
    ids = frequent_ids(train, target, shape.draft_vocab_size)
    torch.manual_seed(1)
    kind = "eagle3" if shape.num_modules is None else "mtp"
    kind = kind if shape.memory_layers is None else "shared_kv_mtp"
    head = new_head(kind, target, shape, ids, 3).eval()
    generator = torch.Generator().manual_seed(2)
    window = train.windows(1, 8, generator)
    teacher = Teacher(target, ids, memory_layers(head))
    settings = Settings(length=5, num_drafts=3, decay=0.5, tv_weight=2.0)
    losses_of = new_losses(head, settings, compiled=False)
    taught = teacher(window, head.config.feature_layers, 5)
    text = window[0].tolist()
    found = torch.zeros(3, 5, 2)
    for slot in range(5):
        for step in range(3):
            logits = law_of(target.model, head, text[: slot + 2], text[slot + 2 : slot + 2 + step])
            with torch.no_grad():
                prefix = torch.tensor([text[: slot + 2 + step]])
                p = target.model(prefix).logits[0, -1].softmax(-1)[ids]
            log_q = logits.log_softmax(-1)
            overlap = torch.minimum(p, log_q.exp()).sum()
            found[step, slot] = torch.stack([-(p * log_q).sum(), overlap])
    # of the nine ids from the window's first to the one behind it, the fourth and so on count
    marks = torch.tensor([0, 0, 0, 1, 0, 1, 1, 0, 1], dtype=torch.bool)
    drafted = torch.stack([marks[2 + step : 7 + step] for step in range(3)])
    for counted, weights in ((None, torch.ones(3, 5)), (marks[None, 2:], drafted.float())):
        losses = losses_of(window, *taught, generator, counted)
        expected = (found * weights[..., None]).sum(1) / weights.sum(1, keepdim=True)
        torch.testing.assert_close(losses.cross_entropy, expected[:, 0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(losses.acceptance, expected[:, 1], rtol=1e-4, atol=1e-5)
        decayed = torch.tensor([1, 0.5, 0.25])
        total = (decayed * (expected[:, 0] + 2 * (1 - expected[:, 1]))).sum()
        torch.testing.assert_close(losses.total.detach(), total, rtol=1e-4, atol=1e-5)


def test_a_trained_head_is_written_measured_and_drafts_better(
    target: CausalLM, corpus: Corpus, tmp_path: Path
) -> None:
    report = trained(target, corpus, tmp_path, num_prompts=4, settings={"steps": 40, "batch": 8})
    first, last = report["points"][0], report["points"][-1]
    assert last["loss"] < first["loss"]
    assert sum(last["acceptance"]) > sum(first["acceptance"])
    assert [m["temperature"] for m in report["acceptance"]] == [0.0, 0.7, 1.0]
    assert all(1 <= m["length"] <= 5 for m in report["acceptance"])
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"config.json", "model.safetensors", "training.json", "curves.png"}
    assert json.loads((tmp_path / "training.json").read_text())["parameters"] > 0
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_trained_modules_draft_better_and_are_measured_one_by_one(
    target: CausalLM, corpus: Corpus, tmp_path: Path
) -> None:
    report = trained(
        target,
        corpus,
        tmp_path,
        kind="mtp",
        shape=HeadShape(num_modules=2),
        num_prompts=1,
        settings={"steps": 30, "num_drafts": 2},
    )
    assert kind_of_head(tmp_path) == "mtp"
    first, last = report["points"][0], report["points"][-1]
    assert last["loss"] < first["loss"]
    assert len(last["acceptance"]) == 2
    assert [len(m["by_draft"]) for m in report["acceptance"]] == [2, 2, 2]


def test_a_trained_head_over_the_targets_keys_drafts_better(
    target: CausalLM, corpus: Corpus, tmp_path: Path
) -> None:
    report = trained(
        target, corpus, tmp_path, kind="shared_kv_mtp", num_prompts=1, settings={"steps": 30}
    )
    assert kind_of_head(tmp_path) == "shared_kv_mtp"
    first, last = report["points"][0], report["points"][-1]
    assert last["loss"] < first["loss"]
    assert report["shape"]["memory_layers"] == (1,)
    assert all(1 <= m["length"] <= 5 for m in report["acceptance"])


def test_every_method_with_a_head_is_a_kind_to_train(target: CausalLM) -> None:
    assert set(KINDS) == set(HEADS) == set(COMMANDS)
    with pytest.raises(ValueError, match="unknown kind of head 'eagle'; choose one of eagle3, mtp"):
        new_head("eagle", target, HeadShape(), torch.arange(VOCAB), 2)


def test_shapes_of_the_other_kind_are_refused(target: CausalLM) -> None:
    ids = torch.arange(VOCAB)
    with pytest.raises(ValueError, match="reads the last state, 2, alone"):
        new_head("mtp", target, HeadShape((1,)), ids, 2)
    with pytest.raises(ValueError, match="an EAGLE-3 head has one layer"):
        new_head("eagle3", target, HeadShape(num_modules=2), ids, 2)
    with pytest.raises(ValueError, match="memory_layers = \\(1,\\): a head for .* keys of its own"):
        new_head("mtp", target, HeadShape(memory_layers=(1,)), ids, 2)
    for shape, message in (
        (HeadShape((1,)), "reads the last state, 2, alone"),
        (HeadShape(num_modules=2), "has layers, not modules"),
        (HeadShape(memory_layers=(2,)), "memory layers \\[2\\].*keep every token are \\[0, 1\\]"),
        (HeadShape(num_key_value_heads=4), "num_key_value_heads = 4.*has the target's"),
        (HeadShape(selector_top_k=4), "has no candidates"),
    ):
        with pytest.raises(ValueError, match=message):
            new_head("shared_kv_mtp", target, shape, ids, 2)


def test_a_killed_training_resumes_and_ends_with_the_same_weights(
    target: CausalLM, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, corpus = corpus, Corpus(corpus.ids, corpus.starts, corpus.ids % 3 > 0)
    trained(target, corpus, tmp_path / "whole")
    whole = (tmp_path / "whole" / "model.safetensors").read_bytes()
    step, count = Loop._step, 0

    def killed(self: Loop, *args: Any) -> Any:
        nonlocal count
        count += 1
        if count == 5:
            raise KeyboardInterrupt
        self.save_seconds = 0.0
        return step(self, *args)

    monkeypatch.setattr(Loop, "_step", killed)
    folder = tmp_path / "killed"
    with pytest.raises(KeyboardInterrupt):
        trained(target, corpus, folder)
    assert {path.name for path in folder.iterdir()} == {STATE}
    monkeypatch.undo()
    with pytest.raises(ValueError, match="resume it, remove it"):
        trained(target, corpus, folder)
    for names, changes in (
        ("learning_rate", {"settings": {"learning_rate": 1.0}}),
        ("intermediate_size", {"shape": HeadShape(intermediate_size=8)}),
        ("feature_layers", {"shape": HeadShape((0, 1, 2))}),
        ("corpus", {"corpus": Corpus(corpus.ids.flip(0), corpus.starts)}),
        ("corpus", {"corpus": Corpus(corpus.ids, corpus.starts[:-1])}),
        ("corpus", {"corpus": plain}),
        ("begins_with", {"begin_with": tmp_path / "whole"}),
        ("feature_layers, head, .*", {"kind": "mtp"}),
    ):
        options: Any = {"corpus": corpus} | changes
        with pytest.raises(ValueError, match=f"differs in {names}; pass the same"):
            trained(target, folder=folder, resume=True, **options)
    report = trained(target, corpus, folder, resume=True)
    assert (folder / "model.safetensors").read_bytes() == whole
    assert [point["step"] for point in report["points"]] == [1, 2, 3, 4, 5, 6]
    (folder / STATE).write_bytes(b"no checkpoint")
    with pytest.raises(ValueError, match="is damaged"):
        trained(target, corpus, folder, resume=True)


def test_the_command_trains_on_text_and_on_the_targets_own(tmp_path: Path) -> None:
    tokenizer = word_tokenizer([f"w{i}" for i in range(VOCAB)], eos_token="w7")
    tiny_llama(0, vocab_size=VOCAB, eos_token_id=EOS).save_pretrained(tmp_path / "t")
    tokenizer.save_pretrained(tmp_path / "t")
    lines = [json.dumps({"text": f"w{i % VOCAB}"}) for i in range(2)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    options = ["--steps", "2", "--batch", "2", "--length", "4", "-o", str(tmp_path / "head")]
    options += ["--num-speculative-tokens", "2", "--self-tokens", "300"]
    command = ["train", "eagle3", str(tmp_path / "t"), *options]
    runner = CliRunner()
    result = runner.invoke(app, [*command, "--data", "self"])
    assert result.exit_code == 0, result.output
    assert "acceptance length" in result.output and "left" in result.output
    for options, message in (
        (["--data", str(tmp_path / "no.txt")], "no such file"),
        (["--data", str(tmp_path / "a.jsonl")], "pass more text or a smaller length"),
        (["--data", "self", "--data", "x"], "stands alone"),
        (["--data", "self", "--feature-layers", "a"], "write numbers"),
        (["--data", "self", "--feature-layers", "1,9"], "has the states 0 to 2"),
        (["--data", "self", "--draft-vocab-size", "24"], "must be from 1 to 23"),
        (["--data", "self", "--learning-rate", "0"], "must be above 0"),
        (["--data", "self", "--length", "500"], "pass a smaller length"),
    ):
        result = runner.invoke(app, [*command, *options])
        assert result.exit_code == 2 and message in result.output, result.output
    command[1] = "mtp"
    [path] = (tmp_path / "head").glob("corpus-*.safetensors")
    corpus = str(path)
    command[command.index("-o") + 1] = str(tmp_path / "modules")
    for options, code, message in (
        (["--data", corpus], 0, "acceptance length"),
        (["--data", corpus, "--modules", "3"], 2, "one module that is applied again, or a module"),
    ):
        result = runner.invoke(app, [*command, *options])
        assert result.exit_code == code and message in result.output, result.output
    further = [*command, "--data", corpus, "--from", str(tmp_path / "modules")]
    further[further.index("-o") + 1] = str(tmp_path / "further")
    for options, code, message in (
        (["--modules", "2"], 2, "--modules: a head that is trained further keeps its own shape"),
        ([], 0, "acceptance length"),
    ):
        result = runner.invoke(app, [*further, *options])
        assert result.exit_code == code and message in result.output, result.output
    command[1] = "dspark"
    command[command.index("-o") + 1] = str(tmp_path / "blocks")
    options = ["--data", corpus, "--markov-rank", "3", "--layers", "2"]
    result = runner.invoke(app, [*command, *options])
    assert result.exit_code == 0 and "acceptance length" in result.output, result.output
    config = json.loads((tmp_path / "blocks" / "config.json").read_text(encoding="utf-8"))
    assert config["markov_rank"] == 3
    assert config["transformer_layer_config"]["num_hidden_layers"] == 2
    command[1] = "shared_kv_mtp"
    command[command.index("-o") + 1] = str(tmp_path / "shared")
    for options, code, message in (
        (["--data", corpus, "--memory-layers", "0,1"], 0, "acceptance length"),
        (["--data", corpus, "--memory-layers", "2"], 2, "that keep every token are [0, 1]"),
        (["--data", corpus, "--memory-layers", "a"], 2, "--memory-layers 'a': write numbers"),
    ):
        result = runner.invoke(app, [*command, *options])
        assert result.exit_code == code and message in result.output, result.output
    command[1] = "dflash2"
    command[command.index("-o") + 1] = str(tmp_path / "dflash2")
    result = runner.invoke(app, [*command, "--data", corpus, "--candidates", "5"])
    assert result.exit_code == 0 and "acceptance length" in result.output, result.output


def test_data_without_usable_text_is_refused(target: CausalLM, tmp_path: Path) -> None:
    tokenizer = word_tokenizer([f"w{i}" for i in range(VOCAB)], eos_token="w7")
    for name, content, message in (
        ("empty.txt", b" \n ", "no usable text"),
        ("binary.txt", b"\xff\xfe\xfa", "no UTF-8 text"),
        ("bad.jsonl", b'{"text": "w1"}\nnot json', "line 2 is no JSON"),
        ("keys.jsonl", b'{"body": "w1"}', "line 1 is no object with a 'text' or with 'messages'"),
        ("chat.jsonl", b'{"messages": []}', "line 1 has 'messages', and .* no chat template"),
        ("a.safetensors", b"nothing", "no saved corpus"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=message):
            read_corpus([tmp_path / name], tokenizer, VOCAB)
    with pytest.raises(ValueError, match="no tokenizer to read it"):
        read_corpus([tmp_path / "empty.txt"], None, VOCAB)
    Corpus.from_documents([[1, 99], [2, 3]], None).save(tmp_path / "b.safetensors")
    with pytest.raises(ValueError, match="made with another tokenizer"):
        read_corpus([tmp_path / "b.safetensors"], None, VOCAB)
    with pytest.raises(ValueError, match="at least 2 are needed"):
        Corpus.from_documents([[1, 2]], EOS).split()


def test_frequent_ids_keep_the_end_token_and_break_ties_downwards(target: CausalLM) -> None:
    corpus = Corpus(torch.tensor([3, 3, 3, 5, 9, 9, 11], dtype=torch.int32), torch.tensor([0]))
    assert frequent_ids(corpus, target, 3).tolist() == [3, EOS, 9]
    assert frequent_ids(corpus, target, 4).tolist() == [3, 5, EOS, 9]
    assert frequent_ids(corpus, target, None).tolist() == list(range(VOCAB))
