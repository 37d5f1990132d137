"""The output file: one line for each answer, and the memory of what is done if the run is interrupted.

A killed run leaves whole lines and at most one torn one at the end, because each line is one append.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from mesh.errors import ConfigError

try:
    import fcntl
except ImportError:  # Windows: two runs on one file are not noticed there
    fcntl = None  # type: ignore[assignment]

_SUFFIX = ".tmp"


class Ledger:
    """Invariant: each line number stands in the file at most once, and `num_kept` of them were there at the start."""

    def __init__(self, path: Path, is_retried: Callable[[str], bool], *, restart: bool = False) -> None:
        """Go on with the file, or begin it, or with `restart` begin it anew. Records of errors whose code `is_retried`
        are dropped, and their lines count as not done. Raises ConfigError if it is not ours to write in.
        """
        self._path = path
        self._keys = array("Q")  # by line number; 0: not done. Eight bytes a line, for a million of them
        self.num_kept = 0
        self.num_failed = 0  # of those
        self.num_retried = 0
        self._is_retried = is_retried
        try:
            self._file = _open_locked(path)
            try:
                if restart:
                    self._file.truncate(0)
                self._recover()
            except BaseException:
                self._file.close()
                raise
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from None

    @property
    def last_line(self) -> int:
        """The highest line number in the file; 0 if it is empty."""
        return len(self._keys) - 1 if self._keys else 0

    def key_of(self, number: int) -> int:
        """Of the line as it was when it was answered; 0 if it was not."""
        return self._keys[number] if number < len(self._keys) else 0

    def write(self, number: int, key: int, record: dict[str, Any]) -> None:
        """Append, all or nothing as far as other programs can see; safe against a kill, not yet against a power cut."""
        line = json.dumps({"line": number, **record, "key": f"{key:016x}"}, ensure_ascii=False)
        rest = memoryview(line.encode(errors="replace") + b"\n")
        while rest:  # a disk that is nearly full takes a part, and says so only the next time
            rest = rest[self._file.write(rest) :]

    def sync(self) -> None:
        """Make it safe against a power cut, too. May take a while."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def _recover(self) -> None:
        end = 0
        dropped = False
        with open(self._path, "rb") as reader:
            for count, raw in enumerate(reader, 1):
                if not raw.endswith(b"\n"):
                    break  # torn by a kill
                end += len(raw)
                dropped = not self._take(raw, count) or dropped
        self._file.truncate(end)
        self._file.seek(end)
        if dropped:
            self._compact()

    def _take(self, raw: bytes, count: int) -> bool:
        """Whether this record stays."""
        number, key, code = self._parse(raw, count)
        if code and self._is_retried(code):
            self.num_retried += 1
            return False
        if number >= len(self._keys):
            self._keys.extend([0] * (number + 1 - len(self._keys)))
        self._keys[number] = key
        self.num_kept += 1
        self.num_failed += bool(code)
        return True

    def _parse(self, raw: bytes, count: int) -> tuple[int, int, str]:
        try:
            record = json.loads(raw)
            number, key = record["line"], int(record["key"], 16)
            code = record["error"]["code"] if "error" in record else ""
            if type(number) is not int or not 0 < number < 1 << 40 or not 0 < key < 1 << 63 or type(code) is not str:
                raise ValueError
        except (ValueError, KeyError, TypeError):
            raise ConfigError(
                f"{self._path}: line {count} was not written by this command; give another output file, "
                "or --restart to overwrite this one"
            ) from None
        return number, key, code

    def _compact(self) -> None:
        """Leave out the dropped records: written beside and put in place at once, so a kill here loses nothing."""
        path = self._path.resolve()  # a symbolic link stays one
        beside = path.with_name(path.name + _SUFFIX)
        shrunk = _open_locked(beside)
        shrunk.truncate(0)
        with open(self._path, "rb") as reader:
            for count, raw in enumerate(reader, 1):
                if not ((code := self._parse(raw, count)[2]) and self._is_retried(code)):
                    shrunk.write(raw)
        os.fsync(shrunk.fileno())
        os.replace(beside, path)
        self._file.close()
        self._file = shrunk


def _open_locked(path: Path) -> BinaryIO:
    """Unbuffered, so that each write is one append. Raises OSError; ConfigError if another run writes in it."""
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0)
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise ConfigError(f"{path}: another run is writing this file") from None
    return file
