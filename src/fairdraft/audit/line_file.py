"""A file of lines that holds whole ones only, whatever happens while it is written."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import BinaryIO

__all__ = ["LineFile"]

#: bytes of lines that are compressed together
BLOCK_BYTES = 1 << 18


class LineFile:
    """A new file to which lines are appended.

    A plain file gets every line in one write. A compressed one gets a gzip member for every
    256 KiB of lines, so that what is in the file can always be read to its end; `flush` writes a
    shorter one. What a failed write has left behind is taken away again, and the lines stay in
    memory for another try.

    Args:
        path: Compressed if it ends in .gz.

    Raises:
        OSError: If the file exists or cannot be made.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._is_compressed = self.path.name.endswith(".gz")
        try:
            self._file: BinaryIO | None = open(self.path, "xb", buffering=0)  # noqa: SIM115
        except FileExistsError:
            raise FileExistsError(
                17, "there is a file already; move it away or name another", str(self.path)
            ) from None
        self._waiting: list[bytes] = []
        self._num_waiting = 0
        self._size = 0

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be written any more."""
        return self._file is None

    def write(self, line: bytes) -> None:
        """Appends a line, which ends in a newline.

        Raises:
            OSError: If there is no room; the file holds whole lines all the same.
        """
        self._waiting.append(line)
        self._num_waiting += len(line)
        if not self._is_compressed or self._num_waiting >= BLOCK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Writes every line that waits.

        Raises:
            OSError: As in `write`.
        """
        if not self._waiting or self._file is None:
            return
        data = b"".join(self._waiting)
        if self._is_compressed:
            data = gzip.compress(data, compresslevel=6, mtime=0)
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._file.write(rest) or 0 :]
        except OSError:
            self._file.truncate(self._size)
            self._file.seek(self._size)
            raise
        self._size += len(data)
        self._waiting, self._num_waiting = [], 0

    def close(self) -> None:
        """Flushes, sees to it that the disk has it, and closes; the file is closed even if not.

        Raises:
            OSError: As in `write`.
        """
        if self._file is None:
            return
        try:
            self.flush()
            os.fsync(self._file.fileno())
        finally:
            self._file.close()
            self._file = None
