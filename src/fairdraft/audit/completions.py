"""Reads completions whose tokens come with the most likely ones beside them.

Axes: T tokens of a text, k tokens listed beside each.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairdraft.audit.subject import InvalidSubject
from fairdraft.stats.tokens import REST

__all__ = ["SMALLEST_REST", "Completion", "listed_law", "parse_completion", "string_id"]

_ID_PREFIX = "token_id:"
# how far two reports of one logprob may differ: they are float32 printed in decimal
_SAME_LOGPROB = 1e-4
_MOST_OVER_ONE = 1e-4
# servers write the logarithm of 0 as a large negative number
_LEAST_LOGPROB = -700.0
# what rounding of the listed probabilities can hide in the rest
SMALLEST_REST = 2e-6


@dataclass(frozen=True)
class Completion:
    """One text of a completions endpoint.

    Attributes:
        token_ids: int64 [T], what was emitted.
        listed_ids: int64 [T, k], the most likely tokens; which ones does not depend on what was
            emitted.
        listed_logprobs: float64 [T, k].
        logprobs: float64 [T], of what was emitted.
        prompt_ids: int64, or None if the server does not tell.
        finish_reason: "length", "stop" or the server's own word.
        has_ids: Whether ids are the server's; else they are digests of token strings.
    """

    token_ids: np.ndarray
    listed_ids: np.ndarray
    listed_logprobs: np.ndarray
    logprobs: np.ndarray
    prompt_ids: np.ndarray | None
    finish_reason: str
    has_ids: bool

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True)
class _Token:
    name: str
    logprob: float
    listed: dict[str, float]


def string_id(text: str) -> int:
    """Returns the id of a token that is known by its string alone: 62 bits of its BLAKE2b."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 2


def parse_completion(answer: Any, k: int) -> Completion:
    """Reads the answer to a request for one completion with k logprobs.

    Two forms are known: parallel lists (`tokens`, `token_logprobs`, `top_logprobs`), and a list
    `content` of one object a token. The token emitted may be listed besides the k most likely
    ones; it is then taken off the list, so that the list depends on the law alone.

    Raises:
        InvalidSubject: If logprobs are missing, fewer than asked, contradictory, or not those of
            a probability distribution.
    """
    try:
        choice = answer["choices"][0]
        logprobs = choice["logprobs"]
    except (KeyError, IndexError, TypeError):
        raise InvalidSubject(f"the answer holds no completion: {str(answer)[:200]}") from None
    if not logprobs:
        raise InvalidSubject(
            "the server returned no logprobs, so nothing says what its tokens should follow; "
            "serve with logprobs enabled"
        )
    tokens = _content(logprobs) if logprobs.get("content") else _parallel(logprobs)
    if not tokens:
        raise InvalidSubject("the server returned a completion without a token")
    _check_count(answer, choice, tokens)
    rows = [_row(t, token, k) for t, token in enumerate(tokens)]
    has_ids = all(name.startswith(_ID_PREFIX) for name in _names(tokens))
    ids = {name: _id(name, has_ids) for name in _names(tokens)}
    completion = Completion(
        token_ids=np.array([ids[token.name] for token in tokens], np.int64),
        listed_ids=np.array([[ids[name] for name in row] for row in rows], np.int64),
        listed_logprobs=np.array([list(row.values()) for row in rows], np.float64),
        logprobs=np.array([token.logprob for token in tokens], np.float64),
        prompt_ids=_optional_ids(choice.get("prompt_token_ids")),
        finish_reason=str(choice.get("finish_reason")),
        has_ids=has_ids,
    )
    _check_ids(completion, _optional_ids(choice.get("token_ids")))
    return completion


def listed_law(completion: Completion) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns ids and law [T, k + 1] of the listed tokens and the rest, and each token's column.

    A token outside the list is in the rest although its own probability is known: a column of
    its own would make the columns depend on what was emitted. Only a token of probability 0
    takes the place of a listed one, which joins the rest; a right sampler never needs that. The
    rest gets what is left of 1, but at least 2e-6, since rounding can hide that much.

    Raises:
        InvalidSubject: If the listed probabilities exceed 1.
    """
    listed = np.exp(completion.listed_logprobs)
    total = listed.sum(axis=1)
    if total.max() > 1 + _MOST_OVER_ONE:
        t = int(total.argmax())
        raise InvalidSubject(
            f"the listed probabilities of token {t} add up to {total[t]:.5f}: these are no "
            "logprobs of one law"
        )
    rest = np.full((len(completion), 1), REST)
    ids = np.concatenate([completion.listed_ids, rest], axis=1)
    match = ids == completion.token_ids[:, None]
    column = np.where(match.any(axis=1), match.argmax(axis=1), listed.shape[1])
    impossible = (completion.logprobs < _LEAST_LOGPROB) & ~match.any(axis=1)
    listed[impossible, -1] = 0.0
    ids[impossible, -2] = completion.token_ids[impossible]
    column[impossible] = listed.shape[1] - 1
    law = np.column_stack([listed, np.maximum(1 - listed.sum(axis=1), SMALLEST_REST)])
    return ids, law / law.sum(axis=1, keepdims=True), column


def _parallel(logprobs: dict[str, Any]) -> list[_Token]:
    names = logprobs.get("tokens") or []
    own = logprobs.get("token_logprobs") or []
    listed = logprobs.get("top_logprobs") or []
    if not len(names) == len(own) == len(listed):
        raise InvalidSubject(
            f"{len(names)} tokens came with {len(own)} logprobs and {len(listed)} lists of the "
            "most likely tokens; there must be one of each for every token"
        )
    return [
        _Token(name, _number(logprob), {key: _number(value) for key, value in (row or {}).items()})
        for name, logprob, row in zip(names, own, listed, strict=True)
    ]


def _content(logprobs: dict[str, Any]) -> list[_Token]:
    return [
        _Token(
            _entry_name(entry),
            _number(entry.get("logprob")),
            {_entry_name(top): _number(top.get("logprob")) for top in entry["top_logprobs"]},
        )
        for entry in logprobs["content"]
    ]


def _entry_name(entry: dict[str, Any]) -> str:
    return f"{_ID_PREFIX}{entry['id']}" if "id" in entry else entry["token"]


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidSubject(f"a logprob is {value!r}, not a number")
    if math.isnan(value) or value > _SAME_LOGPROB:
        raise InvalidSubject(f"a logprob is {value}; the logarithm of a probability is at most 0")
    return float(value)


def _names(tokens: Iterable[_Token]) -> set[str]:
    return {name for token in tokens for name in (token.name, *token.listed)}


def _id(name: str, has_ids: bool) -> int:
    if not has_ids:
        return string_id(name)
    try:
        return int(name.removeprefix(_ID_PREFIX))
    except ValueError:
        raise InvalidSubject(f"a token is called {name!r}, which is no id") from None


def _optional_ids(value: Any) -> np.ndarray | None:
    return None if value is None else np.array(value, np.int64)


# the k most likely tokens and their logprobs
def _row(t: int, token: _Token, k: int) -> dict[str, float]:
    listed = token.listed
    if token.name in listed and abs(listed[token.name] - token.logprob) > _SAME_LOGPROB:
        raise InvalidSubject(
            f"token {t}, {token.name!r}, has logprob {token.logprob:.4f} and is listed with "
            f"{listed[token.name]:.4f}: two tokens share that string; have the server report ids"
        )
    if len(listed) > k + 1:
        raise InvalidSubject(f"token {t} came with {len(listed)} logprobs where {k} were asked")
    if len(listed) == k + 1:
        if token.name not in listed:
            raise InvalidSubject(_mismatch(t, token))
        listed = {name: value for name, value in listed.items() if name != token.name}
    if len(listed) < k:
        raise InvalidSubject(
            f"token {t} came with {len(listed)} logprobs where {k} were asked; pass --logprobs "
            "with what the server gives, or have it report ids if strings of tokens coincide"
        )
    if token.name not in listed and token.logprob > min(listed.values()) + _SAME_LOGPROB:
        raise InvalidSubject(_mismatch(t, token))
    return listed


def _mismatch(t: int, token: _Token) -> str:
    return (
        f"token {t}, {token.name!r}, has logprob {token.logprob:.4f} and is not among the most "
        f"likely ones ({', '.join(map(repr, list(token.listed)[:3]))}, ...): its string does not "
        "match the listed ones; have the server report ids"
    )


def _check_count(answer: dict[str, Any], choice: dict[str, Any], tokens: list[_Token]) -> None:
    counted = (answer.get("usage") or {}).get("completion_tokens")
    ids = choice.get("token_ids")
    known = [number for number in (counted, None if ids is None else len(ids)) if number]
    for number in known:
        if number != len(tokens):
            raise InvalidSubject(
                f"the server counts {number} tokens and lists {len(tokens)}; every token "
                "must be listed, the one that ends a text too"
            )


def _check_ids(completion: Completion, ids: np.ndarray | None) -> None:
    if ids is None or not completion.has_ids or np.array_equal(ids, completion.token_ids):
        return
    t = int(np.flatnonzero(ids != completion.token_ids)[0])
    raise InvalidSubject(
        f"token {t} is {ids[t]} in one place of the answer and {completion.token_ids[t]} in another"
    )
