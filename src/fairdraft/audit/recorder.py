"""Writes traces: what an engine emitted, beside the laws that it sampled from.

Axes: C columns of a law: all V ids, or some of them and rest cells.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fairdraft.audit.line_file import LineFile
from fairdraft.audit.narrowing import narrow
from fairdraft.audit.trace_schema import LAWS, SOURCES, TraceHeader, pack, prompt_hash

if TYPE_CHECKING:
    from fairdraft.stats.tokens import ScoredTokens

__all__ = ["Recorder", "TextRecorder"]

Law = Any


class Recorder:
    """Writes one trace; a context manager that closes it.

    Texts stand in the file one after the other, in the order in which they began. Of texts that
    grow at the same time the first is written as it grows, and the others wait in memory until
    all before them have ended. May be used by several threads.

    Args:
        path: A new file, gzipped if the name ends in .gz.
        header: What holds for every token.
        max_columns: Columns of a law at most: of wider ones the likeliest ids are kept, under
            target or draft, and the others are lumped, exactly.

    Attributes:
        num_tokens: Tokens given so far.

    Raises:
        OSError: If the file exists or cannot be made.
    """

    def __init__(
        self, path: str | os.PathLike[str], header: TraceHeader, *, max_columns: int = 256
    ) -> None:
        if max_columns < 8:
            raise ValueError(f"max_columns = {max_columns} must be at least 8")
        self.header = header
        self.max_columns = max_columns
        self.num_tokens = 0
        self._texts: list[TextRecorder] = []
        self._names: set[tuple[str, int]] = set()
        self._lock = threading.RLock()
        self._file = LineFile(path)
        self._file.write(_line(header.document()))

    def text(
        self,
        request: str | int,
        *,
        seed: int | str | None = None,
        prompt: Sequence[int] | str | None = None,
        sample: int = 0,
    ) -> TextRecorder:
        """Begins a text; a context manager that ends it.

        Args:
            request: Id of the request.
            seed: Of the request; None if it had none, so that no other text has the same noise.
            prompt: Token ids, or anything short that tells prompts apart, such as a hash.
            sample: Which of the request's samples.

        Raises:
            ValueError: If there was a text of this request and sample before.
        """
        with self._lock:
            self._check_open()
            name = (str(request), sample)
            if name in self._names:
                raise ValueError(
                    f"request {request!r} has a text of sample {sample} already; give every text "
                    "a name of its own"
                )
            self._names.add(name)
            identity = {"request": request, "seed": seed, "prompt": prompt, "sample": sample}
            before = None
            if prompt is not None and not isinstance(prompt, str):
                identity["prompt"] = prompt_hash(prompt)
                before = [int(token_id) for token_id in reversed(prompt[-2:])]
            text = TextRecorder(self, identity, before)
            self._texts.append(text)
            return text

    def flush(self) -> None:
        """Writes everything that can be written now.

        Raises:
            OSError: If there is no room; what was written stays, and what was not is kept.
        """
        with self._lock, _Named(self):
            self._write_ready()
            self._file.flush()

    def close(self) -> None:
        """Ends all texts and closes the file.

        Raises:
            OSError: As in `flush`.
        """
        with self._lock:
            if self._file.is_closed:
                return
            for text in self._texts:
                text.is_open = False
            with _Named(self):
                try:
                    self._write_ready()
                finally:
                    self._file.close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        try:
            self.close()
        except OSError:
            # what is already on its way out says more
            if kind is None:
                raise

    def _check_open(self) -> None:
        if self._file.is_closed:
            raise ValueError(f"{self._file.path} is closed; begin another trace")

    def _note(self, text: TextRecorder, line: bytes) -> None:
        with self._lock:
            self._check_open()
            text.waiting.append(line)
            self.num_tokens += 1
            if text is self._texts[0]:
                with _Named(self):
                    self._write_ready()

    def _end(self, text: TextRecorder) -> None:
        with self._lock:
            text.is_open = False
            if not self._file.is_closed:
                with _Named(self):
                    self._write_ready()

    def _write_ready(self) -> None:
        while self._texts:
            text = self._texts[0]
            while text.waiting:
                # the file keeps a line that it could not write
                self._file.write(text.waiting.pop(0))
            if text.is_open:
                return
            del self._texts[0]


class TextRecorder:
    """Writes the tokens of one text, in order."""

    def __init__(self, recorder: Recorder, identity: dict[str, Any], before: Any) -> None:
        self.is_open = True
        self.waiting: list[bytes] = []
        self._recorder = recorder
        self._identity = identity
        self._before = before
        self._position = 0

    def token(
        self,
        token: int,
        target: Law,
        *,
        draft: Law | None = None,
        ids: Sequence[int] | None = None,
        slot: int | None = None,
        source: str = "unknown",
        drafted: int | None = None,
        point_mass: bool = False,
        unfiltered: Law | None = None,
        raw_draft: Law | None = None,
        cell: int | None = None,
        drafted_cell: int | None = None,
    ) -> None:
        """Writes the next token.

        Args:
            token: Its id; -1 for one that is not listed and not known.
            target: What it was to follow [V], or [C] beside `ids`; probabilities or logprobs, as
                the header says.
            draft: What the draft tested at this token was drawn from, likewise; None if no draft
                was tested here or its law is not known.
            ids: The id of each column, -1 for a cell of all others; which ones must not depend on
                the token. What the listed ones leave of 1 belongs to the others.
            slot: Index of the token in its round.
            source: "accepted", "replaced", "bonus" (after all drafts stood), "plain" (no draft
                was tested) or "unknown".
            drafted: Id of the draft tested at this token.
            point_mass: Whether that draft was deterministic.
            unfiltered: The target's law without top-k, top-p and min-p.
            raw_draft: The draft's law before temperature and filters.
            cell: Column of the token, if it is not listed and `ids` holds more than one -1.
            drafted_cell: Column of the draft, likewise.

        Raises:
            ValueError: If the laws have not one length.
            OSError: If there is no room; what was written stays, and what was not is kept.
        """
        if not self.is_open:
            raise ValueError(f"the text of request {self._identity['request']!r} has ended")
        if source not in SOURCES:
            raise ValueError(f"source is {source!r}; it is one of {', '.join(SOURCES)}")
        laws = _checked(
            dict(zip(LAWS, (target, draft, unfiltered, raw_draft), strict=True)),
            self._recorder.header.vocab_size if ids is None else len(ids),
        )
        columns: dict[str, Any] = {
            "token": int(token),
            "ids": None if ids is None else np.asarray(ids, np.int64),
            "cell": cell,
            "drafted": drafted,
            "drafted_cell": drafted_cell,
        }
        recorder = self._recorder
        if ids is None and recorder.header.vocab_size > recorder.max_columns:
            columns, laws = narrow(columns, laws, recorder.header, recorder.max_columns)
        place = {"position": self._position, "slot": slot, "source": source}
        document = {**self._identity, **place, **_present(columns)}
        if self._position == 0 and self._before:
            document["before"] = self._before
        if point_mass:
            document["point_mass"] = True
        document |= {name: pack(law) for name, law in laws.items()}
        recorder._note(self, _line(document))
        self._position += 1

    def end(self) -> None:
        """Ends the text."""
        self._recorder._end(self)

    def __enter__(self) -> TextRecorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def record_tokens(
    recorder: Recorder, tokens: ScoredTokens, names: Iterator[str] | None = None
) -> None:
    """Writes whole texts that are scored already, to be read back as they are.

    Args:
        recorder: Whose header fits them.
        tokens: Whole texts.
        names: Request of each text; None for its serial number.
    """
    ids = tokens.ids
    first = np.flatnonzero(np.r_[True, np.diff(tokens.text) > 0])
    for begin, end in zip(first, [*first[1:], len(tokens)], strict=True):
        text = recorder.text(next(names) if names else str(tokens.text[begin]))
        before = [int(token_id) for token_id in tokens.previous[begin] if token_id >= 0]
        text._before = before
        with text:
            for row in range(begin, end):
                follower = tokens.previous[row + 1, 0] if row + 1 < end else -1
                _record_row(text, tokens, row, ids, int(follower))
    recorder.flush()


def _record_row(
    text: TextRecorder, tokens: ScoredTokens, row: int, ids: np.ndarray | None, follower: int
) -> None:
    column, drafted = int(tokens.column[row]), int(tokens.drafted[row])
    own = ids[row] if ids is not None else None
    token_id = column if own is None else int(own[column])
    options: dict[str, Any] = {}
    if own is not None:
        options["ids"] = own
        if token_id < 0:
            # the text goes on with the token's id, which its column has lost
            token_id, options["cell"] = follower, column
    if drafted >= 0:
        drafted_id = drafted if own is None else int(own[drafted])
        if drafted_id < 0:
            options["drafted_cell"] = drafted
        options["drafted"] = drafted_id
    for name in ("draft", "unfiltered", "raw_draft"):
        law = getattr(tokens, name)
        if law is not None and not np.isnan(law[row]).all():
            options[name] = law[row]
    slot = int(tokens.slot[row])
    names = {int(source): name for name, source in SOURCES.items()}
    text.token(
        token_id,
        tokens.target[row],
        slot=slot if slot >= 0 else None,
        source=names[int(tokens.source[row])],
        point_mass=tokens.point_mass is not None and bool(tokens.point_mass[row]),
        **options,
    )


class _Named:
    """Adds to an error of the file what became of the tokens."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: Any, error: Any, _: object) -> None:
        if not isinstance(error, OSError):
            return
        path = self._recorder._file.path
        raise OSError(
            error.errno,
            f"{error.strerror or error}: the trace could not be written on; what was written "
            "stays and can be audited; make room and flush, or begin another file",
            str(path),
        ) from error


def _line(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, separators=(",", ":")) + "\n").encode()


def _checked(laws: dict[str, Law | None], width: int) -> dict[str, np.ndarray]:
    found = {}
    for name, law in laws.items():
        if law is None:
            continue
        numbers = np.asarray(law)
        if numbers.dtype != np.float32:
            numbers = numbers.astype(np.float64)
        if numbers.shape != (width,):
            raise ValueError(
                f"{name} has shape {numbers.shape}; give one number for each of the {width} columns"
            )
        found[name] = numbers
    return found


def _present(columns: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in columns.items():
        if value is not None:
            found[name] = pack(value) if name == "ids" else int(value)
    return found
