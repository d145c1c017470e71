"""The SQLite file of an export: opened for reading, whatever tables and columns it has."""

from __future__ import annotations

import gzip
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracer.errors import InputError
from tracer.events import NONE

Ints = NDArray[np.int64]
Progress = Callable[[int, int], None]

_ROWS = 1 << 16  # fetched at a time
_GZIP = b"\x1f\x8b"


class Database:
    """Tables of one export. A table or a column that it lacks reads as absent."""

    def __init__(self, path: str, connection: sqlite3.Connection) -> None:
        self.path, self._connection = path, connection
        # Texts of traces need not be whole UTF-8.
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        self.tables = frozenset(
            name for (name,) in self.ask("SELECT name FROM sqlite_master WHERE type = 'table'")
        )
        self._columns: dict[str, frozenset[str]] = {}

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        """All rows that the query gives."""
        try:
            return self._connection.execute(query).fetchall()
        except sqlite3.Error as error:
            raise _damaged(self.path, error) from None

    def columns(self, table: str) -> frozenset[str]:
        """Columns of a table; none of one that is absent."""
        if table not in self.tables:
            return frozenset()
        found = self._columns.get(table)
        if found is None:
            found = frozenset(row[1] for row in self.ask(f'PRAGMA table_info("{table}")'))
            self._columns[table] = found
        return found

    def numbers(self, table: str, columns: Sequence[str], where: str = "1") -> dict[str, Ints]:
        """Integer columns of a table; a column that it lacks, or a value that is NULL, is -1."""
        known = self.columns(table)
        asked = [f'COALESCE("{c}", {NONE})' if c in known else str(NONE) for c in columns]
        if not known:
            return {column: np.empty(0, dtype=np.int64) for column in columns}
        query = f'SELECT {", ".join(asked)} FROM "{table}" WHERE {where} ORDER BY rowid'
        parts: list[Ints] = [np.empty((0, len(columns)), dtype=np.int64)]
        parts += [np.array(rows, dtype=np.int64) for rows in self._fetched(query)]
        values = np.concatenate(parts)
        return {column: values[:, at].copy() for at, column in enumerate(columns)}

    def texts(self, table: str, column: str, where: str = "1") -> list[str | None]:
        """A column of texts, in the order of `numbers`; None where it is NULL or absent."""
        if column not in self.columns(table):
            return [None] * int(self.ask(f'SELECT COUNT(*) FROM "{table}" WHERE {where}')[0][0])
        query = f'SELECT "{column}" FROM "{table}" WHERE {where} ORDER BY rowid'
        return [_text(value) for rows in self._fetched(query) for (value,) in rows]

    def _fetched(self, query: str) -> Generator[list[tuple[Any, ...]]]:
        try:
            cursor = self._connection.execute(query)
            while rows := cursor.fetchmany(_ROWS):
                yield rows
        except (sqlite3.Error, OverflowError, ValueError) as error:
            raise _damaged(self.path, error) from None


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else str(value)


def _damaged(path: str, error: Exception) -> InputError:
    return InputError(f"{path}: the database is damaged ({error}); export it again: nsys export")


@contextmanager
def open_database(path: str | PathLike[str]) -> Generator[Database]:
    """The database in a file, plain or gzipped. Nothing is written beside it."""
    with _unpacked(Path(path)) as file:
        # immutable: no lock and no journal, since an export does not change while it is read.
        uri = f"{file.resolve().as_uri()}?mode=ro&immutable=1"
        try:
            connection = sqlite3.connect(uri, uri=True)
        except sqlite3.Error as error:
            raise _damaged(fspath(path), error) from None
        try:
            yield Database(fspath(path), connection)
        finally:
            connection.close()


@contextmanager
def _unpacked(path: Path) -> Generator[Path]:
    with path.open("rb") as file:
        packed = file.read(2) == _GZIP
    if not packed:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="tracer-nsys-") as directory:
        target = Path(directory) / "export.sqlite"
        try:
            with gzip.open(path, "rb") as source, target.open("wb") as unpacked:
                shutil.copyfileobj(source, unpacked, 1 << 20)
        except (EOFError, gzip.BadGzipFile, OSError) as error:
            raise InputError(f"{path}: gzip data that cannot be unpacked ({error})") from None
        yield target
