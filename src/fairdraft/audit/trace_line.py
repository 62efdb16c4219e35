"""Reads one token's line of a trace, strictly.

Axes: C columns of a law: all V ids, or the listed ones and rest cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fairdraft.audit.narrowing import narrow
from fairdraft.audit.trace_schema import (
    LAWS,
    REQUIRED_FIELDS,
    SOURCES,
    TraceHeader,
    unknown_fields,
    unpack,
)
from fairdraft.stats.intake import MAX_COLUMNS, SUM_TOLERANCE
from fairdraft.stats.tokens import REST, Source

__all__ = ["LEAST_REST", "TraceLine", "read_line"]

#: rounding of the listed probabilities can hide so much mass of the others
LEAST_REST = 2e-6
_TESTED = (Source.ACCEPTED, Source.REPLACED, Source.UNKNOWN)


@dataclass(frozen=True)
class TraceLine:
    """A token, and the laws beside it.

    Attributes:
        name: Request and sample: the text.
        seed, prompt, sample: As they stand there.
        position, slot, source: Of the token, as in `ScoredTokens`.
        before: Ids of the prompt's last tokens, the last one first; at most two.
        token: Its id, -1 where unknown.
        column: Its column.
        ids: int64 [C], or None if every id has a column.
        laws: Probabilities [C] by name.
        drafted: Id of the draft tested, -1 for none or unknown.
        drafted_column: Its column, likewise.
        point_mass: Whether that draft was deterministic.
        is_partial: Whether the ids that are not listed have any mass.
    """

    name: tuple[str, int]
    seed: int | str | None
    prompt: str | None
    sample: int
    position: int
    slot: int
    source: Source
    before: tuple[int, ...]
    token: int
    column: int
    ids: np.ndarray | None
    laws: dict[str, np.ndarray]
    drafted: int
    drafted_column: int
    point_mass: bool
    is_partial: bool


def read_line(document: Any, header: TraceHeader) -> TraceLine:
    """Reads a line.

    Raises:
        ValueError: If it breaks the schema; the message says where, without the line's number.
    """
    _check_fields(document, header)
    position = _integer(document, "position", 0)
    slot = -1 if document["slot"] is None else _integer(document, "slot", -1)
    source = _source(document)
    sample = _integer(document, "sample", 0) if "sample" in document else 0
    ids = _ids(document, header)
    laws = _laws(document, header, ids)
    # an explicit cell may be as small as it is
    least = 0.0
    if ids is not None and (ids != REST).all():
        ids, laws = _with_rest(ids, laws)
        least = LEAST_REST
    token = _integer(document, "token", -1)
    drafted = document.get("drafted")
    drafted = None if drafted is None else _integer(document, "drafted", -1)
    if drafted is None and source is Source.ACCEPTED:
        drafted = token
    _check_round(source, token, drafted, laws)
    columns = {name: document.get(name) for name in ("cell", "drafted_cell")}
    if ids is None and header.vocab_size > MAX_COLUMNS:
        _check_id("token", token, header)
        wide = {"token": token, "drafted": drafted}
        found, laws = _narrow(wide, laws, header)
        ids, columns = found["ids"], found
    column = _column("token", token, columns["cell"], ids, header)
    _check_reachable(token, column, ids, laws["target"], least)
    drafted_column = -1
    if drafted is not None:
        drafted_column = _column("drafted", drafted, columns["drafted_cell"], ids, header)
    return TraceLine(
        name=(str(document["request"]), sample),
        seed=document["seed"],
        prompt=document["prompt"],
        sample=sample,
        position=position,
        slot=slot,
        source=source,
        before=_before(document, position),
        token=token,
        column=column,
        ids=ids,
        laws=laws,
        drafted=-1 if drafted is None else drafted,
        drafted_column=drafted_column,
        point_mass=document.get("point_mass") is True,
        is_partial=ids is not None and _rest(ids, laws["target"]) > LEAST_REST,
    )


def _check_fields(document: Any, header: TraceHeader) -> None:
    if not isinstance(document, dict):
        raise ValueError("is no JSON object")
    missing = [name for name in REQUIRED_FIELDS if name not in document]
    if missing:
        raise ValueError(f"lacks {', '.join(missing)}; give null where a value is not known")
    unknown = unknown_fields(document)
    if unknown:
        raise ValueError(
            f"has the field {unknown[0]!r}, which the schema does not know; begin the names of "
            "fields of your own with x_"
        )
    if document.get("params", header.params) != header.params:
        raise ValueError(
            f"has the sampler parameters {document['params']}, the header {header.params}; a "
            "verdict is about one sampler, so write a trace for each"
        )
    for name, kinds in (
        ("request", (str, int)),
        ("seed", (str, int, type(None))),
        ("prompt", (str, type(None))),
        ("point_mass", (bool, type(None))),
    ):
        value = document.get(name)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise ValueError(f"has {str(value)[:40]!r} as its {name}")


def _integer(document: dict[str, Any], name: str, least: int) -> int:
    value = document[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"has {str(value)[:40]!r} as its {name}; give an integer from {least} on")
    return value


def _source(document: dict[str, Any]) -> Source:
    name = document["source"]
    if name is None:
        return Source.UNKNOWN
    if not isinstance(name, str) or name not in SOURCES:
        raise ValueError(f"has the source {str(name)[:40]!r}; it is one of {', '.join(SOURCES)}")
    return SOURCES[name]


def _before(document: dict[str, Any], position: int) -> tuple[int, ...]:
    value = document.get("before")
    if value is None:
        return ()
    is_list = isinstance(value, list) and len(value) <= 2
    if not is_list or not all(type(item) is int and item >= 0 for item in value):
        raise ValueError("has a field before that is no list of at most two ids, the last first")
    if position:
        raise ValueError("has the field before, which belongs to position 0 alone")
    return tuple(value)


def _ids(document: dict[str, Any], header: TraceHeader) -> np.ndarray | None:
    if document.get("ids") is None:
        return None
    ids = _unpacked("ids", document["ids"])
    if ids.dtype.kind != "i" or not len(ids):
        raise ValueError("has a field ids that is no list of integers")
    outside = (ids < REST) | (ids >= header.vocab_size)
    if outside.any():
        raise ValueError(
            f"lists the id {int(ids[outside][0])}, and the vocabulary has {header.vocab_size}"
        )
    listed = ids[ids != REST]
    if len(np.unique(listed)) < len(listed):
        raise ValueError("lists an id twice")
    return ids


def _unpacked(name: str, value: Any) -> np.ndarray:
    try:
        return unpack(value)
    except ValueError as error:
        raise ValueError(f"has a field {name} that {error}") from None


def _laws(
    document: dict[str, Any], header: TraceHeader, ids: np.ndarray | None
) -> dict[str, np.ndarray]:
    width = header.vocab_size if ids is None else len(ids)
    is_complete = ids is None or (ids == REST).any()
    laws = {}
    for name in LAWS:
        if document.get(name) is None:
            if name == "target":
                raise ValueError("has no target law")
            continue
        law = _unpacked(name, document[name])
        if len(law) != width:
            columns = "ids in the vocabulary" if ids is None else "ids listed"
            raise ValueError(f"has {len(law)} numbers as {name}, and there are {width} {columns}")
        laws[name] = _probabilities(name, law, header.values == "logprobs")
        total = float(laws[name].sum(dtype=np.float64))
        if total > 1 + SUM_TOLERANCE or (is_complete and total < 1 - SUM_TOLERANCE):
            raise ValueError(
                f"has a {name} law that sums to {total:.6g}, not to 1; give probabilities of all "
                "ids, or list some and let the rest be implied"
            )
    return laws


def _probabilities(name: str, law: np.ndarray, is_log: bool) -> np.ndarray:
    if law.dtype != np.float32:
        law = law.astype(np.float64)
    if np.isnan(law).any():
        raise ValueError(f"has NaN in its {name} law; leave a law that is not known away")
    if is_log:
        if law.max() > SUM_TOLERANCE:
            raise ValueError(
                f"has the logprob {law.max():g} in its {name} law; the logarithm of a probability "
                "is at most 0, and the header says logprobs"
            )
        return np.exp(law)
    if law.min() < 0 or np.isinf(law).any():
        bad = law.min() if law.min() < 0 else np.inf
        raise ValueError(
            f"has the probability {bad:g} in its {name} law; if these are logarithms, the header "
            "must say logprobs"
        )
    return law


def _with_rest(
    ids: np.ndarray, laws: dict[str, np.ndarray]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Adds the implied cell."""
    found = {}
    for name, law in laws.items():
        wide = law.astype(np.float64)
        found[name] = np.append(wide, max(1.0 - wide.sum(), 0.0))
    return np.append(ids, REST), found


def _check_round(
    source: Source, token: int, drafted: int | None, laws: dict[str, np.ndarray]
) -> None:
    are_known = drafted is not None and min(drafted, token) >= 0
    if source is Source.ACCEPTED and are_known and drafted != token:
        raise ValueError(f"says that draft {drafted} was accepted, and its token is {token}")
    if source in _TESTED:
        return
    if drafted is not None or "draft" in laws:
        what = "law of a draft" if drafted is None else "draft"
        raise ValueError(
            f"has the source {source.name.lower()!r}, so no draft was tested, and yet a {what}; "
            "leave it away, or name the source by what happened"
        )


def _check_id(name: str, token: int, header: TraceHeader) -> None:
    if not 0 <= token < header.vocab_size:
        raise ValueError(
            f"has the {name} {token}, outside of the vocabulary of {header.vocab_size} ids"
        )


def _narrow(
    wide: dict[str, Any], laws: dict[str, np.ndarray], header: TraceHeader
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    plain = TraceHeader(header.vocab_size, header.params, speculative=header.speculative)
    return narrow(wide, laws, plain, MAX_COLUMNS)


def _column(name: str, token: int, cell: Any, ids: np.ndarray | None, header: TraceHeader) -> int:
    """The column of an id, its own or a cell's."""
    if token != REST or ids is None:
        _check_id(name, token, header)
    if ids is None:
        return token
    found = np.flatnonzero(ids == token) if token != REST else ids[:0]
    if len(found):
        return int(found[0])
    rests = np.flatnonzero(ids == REST)
    if cell is None and len(rests) == 1:
        cell = int(rests[0])
    if type(cell) is not int or cell not in rests:
        raise ValueError(
            f"has the {name} {token}, which is not among its ids, and does not say in which of "
            f"the {len(rests)} cells of other ids it is"
        )
    return cell


def _check_reachable(
    token: int, column: int, ids: np.ndarray | None, target: np.ndarray, least: float
) -> None:
    """A token that is not listed needs mass in its cell, more than rounding could be."""
    if ids is None or ids[column] != REST or target[column] > least:
        return
    raise ValueError(
        f"has the token {token}, which is not among its {int((ids != REST).sum())} ids, and these "
        f"leave {target[column]:.2g} for all others; list it with the probability that the target "
        "gave it, or give the exact mass of the others in a cell of id -1"
    )


def _rest(ids: np.ndarray, law: np.ndarray) -> float:
    return float(law[ids == REST].sum())
