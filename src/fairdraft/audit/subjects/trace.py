"""A recorded trace, judged by the laws that stand in it.

Axes: N tokens of a batch, C columns.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fairdraft.audit.checks import SeenRequests
from fairdraft.audit.subject import Batch, InvalidSubject, SubjectInfo
from fairdraft.audit.trace_line import TraceLine, read_line
from fairdraft.audit.trace_schema import TraceHeader
from fairdraft.stats.tokens import NO_TOKEN, REST, ScoredTokens

__all__ = ["TraceSubject"]

#: numbers of one law that a batch holds at most, unless a single text needs more
BATCH_NUMBERS = 1 << 22


@dataclass(frozen=True)
class _Scan:
    """What a file holds, as a first reading found.

    Attributes:
        num_texts, num_tokens: Whole lines only.
        cut: A sentence on the line in which the file breaks off, or None.
    """

    num_texts: int
    num_tokens: int
    cut: str | None


class TraceSubject:
    """Reads a trace twice: once to see that it can be judged at all, then in batches.

    The schema is that of `docs/trace-format.md`. Whatever is wrong in any line makes the whole
    trace invalid before the first token is judged, so that no verdict is reached before the line
    is met.

    Args:
        path: File of JSON lines, gzipped or not, whatever its name.
        allow_cut: Judge a recording that broke off within a line, up to that line.
        tokens_per_batch: Tokens between two looks at the evidence, about: texts stay whole.

    Raises:
        OSError: If the file cannot be read.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        allow_cut: bool = False,
        tokens_per_batch: int = 2048,
    ) -> None:
        if tokens_per_batch < 1:
            raise ValueError(f"tokens_per_batch = {tokens_per_batch} must be at least 1")
        self.path = Path(path)
        self.allow_cut = allow_cut
        self.tokens_per_batch = tokens_per_batch
        self._invalid: str | None = None
        self._header: TraceHeader | None = None
        try:
            self._header = self._read_header()
        except InvalidSubject as reason:
            # an audit of it ends in a verdict, as with any other fault
            self._invalid = str(reason)

    @property
    def info(self) -> SubjectInfo:
        """What is recorded about the subject."""
        header = self._header
        if header is None:
            return SubjectInfo(kind="trace", name=self.path.name, is_speculative=False)
        return SubjectInfo(
            kind="trace",
            name=f"{header.engine}, recorded in {self.path.name}",
            parameters={
                **header.params,
                "file": self.path.name,
                "vocab_size": header.vocab_size,
                "laws": header.laws,
                "values": header.values,
                "allow_cut": self.allow_cut,
            },
            scoring=header.scoring,
            default_eps0=header.eps0,
            is_speculative=header.speculative,
            sampler=header.sampler,
            rule=header.rule,
            duplicates_declared=header.duplicates,
        )

    def batches(self, cursor: Any = None) -> Iterator[Batch]:
        """Yields whole texts; the cursor counts them and tells the part of the file before.

        Raises:
            InvalidSubject: If the file cannot be judged; the message names the line.
        """
        if self._header is None:
            raise InvalidSubject(self._invalid or "")
        scan = self._scan(self._header)
        notes = self._notes(scan)
        done = 0 if cursor is None else int(cursor["texts"])
        reader = _Reader(self, self._header)
        texts = reader.texts()
        for _ in range(done):
            if next(texts, None) is None:
                break
        if cursor is not None and reader.digest_before != cursor["digest"]:
            raise self._changed()
        for group in _grouped(texts, self.tokens_per_batch):
            tokens = _scored(group, done)
            done += len(group)
            yield Batch(tokens, {"texts": done, "digest": reader.digest_before}, notes)
            notes = ()

    def lines(self) -> Iterator[bytes]:
        """Whole lines of the file, and then, as it is, what follows the last newline.

        A compressed file that breaks off gives what can be read of it, and then half a line.
        """
        with open(self.path, "rb") as file:
            is_compressed = file.read(2) == b"\x1f\x8b"
        with (gzip.open if is_compressed else open)(self.path, "rb") as file:
            try:
                yield from file
            except (EOFError, zlib.error, gzip.BadGzipFile):
                yield b"{"

    def at(self, number: int, reason: object) -> InvalidSubject:
        """The error about a line."""
        return InvalidSubject(f"line {number} of {self.path.name} {reason}")

    def _read_header(self) -> TraceHeader:
        line = next(self.lines(), b"")
        try:
            return TraceHeader.read(json.loads(line))
        except (ValueError, RecursionError) as error:
            reason = str(error)
            if not line:
                reason = "the file is empty"
            elif isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
                reason = "it is no JSON" if line.endswith(b"\n") else "the file breaks off in it"
            raise self.at(1, f"is no header of a trace: {reason}") from None

    def _scan(self, header: TraceHeader) -> _Scan:
        """Reads every line and refuses what cannot be judged."""
        changing = header.changing_parameter()
        if header.laws == "raw" and changing is not None:
            raise InvalidSubject(
                f"{self.path.name} holds raw laws, and with {changing} tokens are drawn from "
                "others; record the processed laws, after temperature and filters"
            )
        reader = _Reader(self, header)
        seen = SeenRequests(header.duplicates)
        num_texts = num_tokens = num_drafts = 0
        for text in reader.texts():
            first = text[0]
            seen.note(first.seed, first.prompt, _called(first), first.sample)
            num_texts += 1
            num_tokens += len(text)
            num_drafts += sum(_shows_draft(line) for line in text)
        if reader.cut is not None and not self.allow_cut:
            raise InvalidSubject(
                f"{reader.cut}: the recording did not come to its end; the {num_tokens:,} tokens "
                "before can be judged with --allow-cut (allow_cut=True)"
            )
        if not num_tokens:
            raise InvalidSubject(f"{self.path.name} holds no token; there is nothing to judge")
        if header.speculative and not num_drafts:
            raise InvalidSubject(
                f"no draft was tested at any of the {num_tokens:,} tokens in {self.path.name}, "
                "and its header says speculative; turn speculation on and record source, drafted "
                'or draft, or say "speculative": false'
            )
        return _Scan(num_texts, num_tokens, reader.cut)

    def _notes(self, scan: _Scan) -> tuple[str, ...]:
        about = f"{scan.num_tokens:,} tokens of {scan.num_texts:,} texts are in {self.path.name}"
        cut = () if scan.cut is None else (f"{scan.cut}; the lines before it count",)
        return (about, *cut)

    def _changed(self) -> InvalidSubject:
        return InvalidSubject(
            f"{self.path.name} is not what it was when this audit began; begin anew with another "
            "state file"
        )


class _Reader:
    """One reading of a file.

    Attributes:
        cut: As in `_Scan`, once everything was read.
        digest_before: SHA-256 of the header and all texts handed out so far.
    """

    def __init__(self, subject: TraceSubject, header: TraceHeader) -> None:
        self.cut: str | None = None
        self.digest_before = ""
        self._subject, self._header = subject, header
        self._hash = hashlib.sha256()
        self._layout: tuple[int, bool, int] | None = None
        self._num_columns: tuple[int, int] | None = None
        self._names: set[tuple[str, int]] = set()

    def texts(self) -> Iterator[list[TraceLine]]:
        """Texts in the order of the file.

        Raises:
            InvalidSubject: If a line breaks the schema or the order.
        """
        text: list[TraceLine] = []
        for number, raw in enumerate(self._subject.lines(), start=1):
            if number == 1:
                self._hash.update(raw)
                self.digest_before = self._hash.hexdigest()
                continue
            line = self._read(number, raw)
            if line is None:
                break
            if text and line.name != text[0].name:
                yield text
                text = []
            self._check_order(number, line, text)
            text.append(line)
            self._hash.update(raw)
            # the text's own lines count once it is handed out
            self.digest_before = self._hash.hexdigest()
        if text:
            yield text

    def _read(self, number: int, raw: bytes) -> TraceLine | None:
        """A line; None if the file breaks off in it."""
        try:
            document = json.loads(raw)
        except (ValueError, RecursionError):
            if not raw.endswith(b"\n"):
                self.cut = f"{self._subject.path.name} breaks off in line {number}"
                return None
            raise self._subject.at(number, "is no JSON") from None
        try:
            line = read_line(document, self._header)
            self._check_layout(number, line)
        except ValueError as error:
            raise self._subject.at(number, error) from None
        return line

    def _check_layout(self, number: int, line: TraceLine) -> None:
        """Which ids are listed may depend on the laws, and how many should not depend at all."""
        has_ids, has_unfiltered = line.ids is not None, "unfiltered" in line.laws
        if self._layout is None:
            self._layout = (number, has_ids, has_unfiltered)
        first, had_ids, had_unfiltered = self._layout
        if (has_ids, has_unfiltered) != (had_ids, had_unfiltered):
            name = "ids" if has_ids != had_ids else "unfiltered"
            has = has_ids if name == "ids" else has_unfiltered
            raise ValueError(
                f"{'has' if has else 'has no'} {name}, unlike line {first}; record all lines alike"
            )
        if not line.is_partial:
            return
        width = len(line.laws["target"])
        if self._num_columns is None:
            self._num_columns = (number, width)
        first, expected = self._num_columns
        if width != expected:
            raise ValueError(
                f"lists {width - 1} ids, and line {first} {expected - 1}; list the same number "
                "everywhere, without the token itself if it is none of the likeliest: a list that "
                "depends on the token biases the verdict"
            )

    def _check_order(self, number: int, line: TraceLine, text: list[TraceLine]) -> None:
        at = self._subject.at
        if not text:
            if line.name in self._names:
                raise at(
                    number,
                    f"goes on with {_called(line)}, which had ended; write whole "
                    "texts, one after the other",
                )
            self._names.add(line.name)
        due = len(text)
        if line.position == due:
            if text and (line.seed, line.prompt) != (text[0].seed, text[0].prompt):
                raise at(
                    number, f"gives {_called(line)} another seed or prompt than the line before"
                )
            return
        if line.position < due:
            raise at(
                number,
                f"repeats position {line.position} of {_called(line)}; every token counts once",
            )
        raise at(
            number,
            f"has position {line.position} of {_called(line)} where {due} is due; "
            "record every token, in order",
        )


def _called(line: TraceLine) -> str:
    request, sample = line.name
    return f"request {request}" + (f", sample {sample}" if sample else "")


def _shows_draft(line: TraceLine) -> bool:
    is_tested = line.drafted_column >= 0 or "draft" in line.laws or line.point_mass
    return is_tested or line.source > 0


def _grouped(
    texts: Iterator[list[TraceLine]], tokens_per_batch: int
) -> Iterator[list[list[TraceLine]]]:
    group: list[list[TraceLine]] = []
    count = 0
    for text in texts:
        group.append(text)
        count += len(text)
        width = len(text[0].laws["target"])
        if count >= tokens_per_batch or count * width >= BATCH_NUMBERS:
            yield group
            group, count = [], 0
    if group:
        yield group


def _scored(group: list[list[TraceLine]], first_text: int) -> ScoredTokens:
    lines = [line for text in group for line in text]
    width = max(len(line.laws["target"]) for line in lines)
    ids = None
    if lines[0].ids is not None:
        # columns that only wider lines have: cells of nothing
        ids = np.full((len(lines), width), REST)
        for row, line in enumerate(lines):
            assert line.ids is not None
            ids[row, : len(line.ids)] = line.ids
    lengths = [len(text) for text in group]
    point_mass = np.array([line.point_mass for line in lines])
    return ScoredTokens(
        column=np.array([line.column for line in lines]),
        target=_stacked("target", lines, width),
        ids=ids,
        draft=_stacked("draft", lines, width) if _any("draft", lines) else None,
        text=np.repeat(np.arange(first_text, first_text + len(group)), lengths),
        position=np.array([line.position for line in lines]),
        slot=np.array([line.slot for line in lines]),
        source=np.array([line.source for line in lines], np.int8),
        drafted=np.array([line.drafted_column for line in lines]),
        previous=np.concatenate([_previous(text) for text in group]),
        unfiltered=_stacked("unfiltered", lines, width) if _any("unfiltered", lines) else None,
        raw_draft=_stacked("raw_draft", lines, width) if _any("raw_draft", lines) else None,
        point_mass=point_mass,
    )


def _any(name: str, lines: list[TraceLine]) -> bool:
    return any(name in line.laws for line in lines)


def _stacked(name: str, lines: list[TraceLine], width: int) -> np.ndarray:
    """One law of all lines, [N, C]; NaN rows where it is not known."""
    known = [line.laws[name] for line in lines if name in line.laws]
    is_single = all(law.dtype == np.float32 for law in known)
    stacked = np.zeros((len(lines), width), np.float32 if is_single else np.float64)
    for row, line in enumerate(lines):
        law = line.laws.get(name)
        if law is None:
            stacked[row] = np.nan
        else:
            stacked[row, : len(law)] = law
    return stacked


def _previous(text: list[TraceLine]) -> np.ndarray:
    """Ids of the two tokens before each [L, 2], the prompt's last ones included."""
    before = [NO_TOKEN, NO_TOKEN, *reversed(text[0].before)][-2:]
    path = np.array([*before, *(line.token for line in text)])
    return np.column_stack([path[1:-1], path[:-2]])
