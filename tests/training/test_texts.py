"""Documents of files: what of a conversation is learned is its last answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from fairdraft.training import read_corpus
from tests.engine.toys import letter_tokenizer

LETTERS = "abc<>UAE|"
#: as chat templates go: a role, the content, an end
TEMPLATE = (
    "{% for m in messages %}<{{ 'U' if m.role == 'user' else 'A' }}>{{ m.content }}</s>"
    "{% endfor %}{% if add_generation_prompt %}<A>{% endif %}"
)


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    made = letter_tokenizer(LETTERS)
    made.chat_template = TEMPLATE
    return made


def said(*contents: str) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {
        "messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]
    }


def written(folder: Path, *lines: Any) -> Path:
    path = folder / "chat.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


def test_the_last_answer_and_its_end_are_learned(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    path = written(tmp_path, said("a", "bc"), {"text": "ab"}, said("a", "b", "c", "ca"))
    corpus = read_corpus([path], tokenizer, len(tokenizer))
    text = tokenizer.decode(corpus.ids.tolist())
    assert text == "<U>a</s><A>bc</s>ab</s><U>a</s><A>b</s><U>c</s><A>ca</s>"
    assert tokenizer.decode(corpus.counted_ids.tolist()) == "bc</s>ab</s>ca</s>"
    assert corpus.num_documents == 3
    assert read_corpus([written(tmp_path, {"text": "ab"})], tokenizer, 10).counted is None


def test_conversations_that_cannot_be_read_are_refused(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    for line, message in (
        (said("a"), "two or more objects"),
        (said("a", "b", "c"), "the last one of the assistant"),
        ({"messages": ["a", "b"]}, "a 'role' and a 'content'"),
        ({"messages": [{"role": "user"}, {"role": "assistant"}]}, "a 'role' and a 'content'"),
    ):
        with pytest.raises(ValueError, match=f"line 1: 'messages' must be .*{message}"):
            read_corpus([written(tmp_path, line)], tokenizer, 10)
    tokenizer.chat_template = TEMPLATE.replace("<A>{% endif", "<E>{% endif")
    with pytest.raises(ValueError, match="where the answer begins is not known"):
        read_corpus([written(tmp_path, said("a", "b"))], tokenizer, 10)


def test_line_separators_of_unicode_end_no_line(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    path = tmp_path / "text.jsonl"
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in ("ab\u2028c", "c")]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert read_corpus([path], tokenizer, len(tokenizer)).num_documents == 2
