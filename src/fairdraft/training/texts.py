"""Text files as documents of ids: plain text, lines of JSON, and conversations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_documents(path: Path, tokenizer: Any) -> Iterator[tuple[list[int], int]]:
    """Ids of each document of a file, and how many at its beginning are read and not learned.

    Args:
        path: `.jsonl`, each line an object with a 'text', or with 'messages' of a chat, of which
            the last one, an assistant's, is learned; any other file is one text.
        tokenizer: The target's, with a chat template if there are messages.

    Raises:
        ValueError: If the file, or a line of it, cannot be used.
    """
    for where, content in _contents(path):
        if not isinstance(content, str):
            yield _conversation(content, tokenizer, where)
        elif content.strip():
            yield tokenizer(content)["input_ids"], 0


def _contents(path: Path) -> Iterator[tuple[str, str | list[Any]]]:
    if not path.is_file():
        raise ValueError(f"no such file: {str(path)!r}")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{str(path)!r} is no UTF-8 text: {error.reason}") from error
    if path.suffix != ".jsonl":
        yield str(path), text
        return
    # a text may hold line separators of Unicode, which end no line of JSON
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{str(path)!r}, line {number}"
        try:
            document = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{where} is no JSON: {error}") from error
        document = document if isinstance(document, dict) else {}
        text, messages = document.get("text"), document.get("messages")
        if isinstance(text, str):
            yield where, text
        elif isinstance(messages, list):
            yield where, messages
        else:
            raise ValueError(f"{where} is no object with a 'text' or with 'messages'")


def _conversation(messages: list[Any], tokenizer: Any, where: str) -> tuple[list[int], int]:
    """A conversation in the tokenizer's template: its ids up to the end of the last answer."""
    if getattr(tokenizer, "chat_template", None) is None:
        raise ValueError(f"{where} has 'messages', and the target has no chat template for them")
    is_chat = all(
        isinstance(message, dict)
        and isinstance(message.get("role"), str)
        and isinstance(message.get("content"), str)
        for message in messages
    )
    if not is_chat or len(messages) < 2 or messages[-1]["role"] != "assistant":
        raise ValueError(
            f"{where}: 'messages' must be two or more objects with a 'role' and a 'content', the "
            "last one of the assistant"
        )
    whole = tokenizer.apply_chat_template(messages, tokenize=False)
    asked = tokenizer.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True)
    if not whole.startswith(asked):
        raise ValueError(
            f"{where}: the target's chat template does not begin an answer as it asks for one, so "
            "where the answer begins is not known"
        )
    # apart, as in use: no token reaches from the question into the answer
    read, answer = (
        tokenizer(part, add_special_tokens=False)["input_ids"]
        for part in (asked, whole[len(asked) :])
    )
    if tokenizer.eos_token_id in answer:
        answer = answer[: answer.index(tokenizer.eos_token_id)]
    return [*read, *answer], len(read)
