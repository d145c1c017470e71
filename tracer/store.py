"""Saved runs: a directory of Parquet tables and a `meta.json`, read back as the same `Trace`."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tracer.aside import old_place, put_aside
from tracer.errors import RunFormatError, TracerError
from tracer.events import (
    EVENTS,
    KIND_CODE,
    SIDE_TABLES,
    Note,
    SchemaError,
    Trace,
    TraceMeta,
    make_table,
    text_column,
)
from tracer.version import VERSION

FORMAT = "tracer.run/1"
META_FILE = "meta.json"
_FAMILY = "tracer.run/"
_EVENTS = "events"
_ALL_TABLES: Mapping[str, Mapping[str, str]] = {_EVENTS: EVENTS, **SIDE_TABLES}
# Without these there is no report; without another table there is a smaller one.
_NEEDED = (_EVENTS, "threads")
# Tables that say nothing without each other.
_TOGETHER = (
    ("graph_captures", "captured_nodes", "captured_modules"),
    ("compiled_graphs", "compiled_calls", "compiled_modules"),
)
# Beyond its limit the writer would give up the dictionary, and with it the order of the texts.
_DICTIONARY_BYTES = 1 << 30


def save_run(
    trace: Trace,
    directory: str | os.PathLike[str],
    *,
    extra_meta: Mapping[str, Any] | None = None,
    keep: bool = True,
) -> Path:
    """Write a trace into `directory`, whole or not at all. A run of ours that is there already is
    kept as `old_place` says, or gone without `keep`; anything else is left alone, and the call
    refused. `extra_meta` joins `meta.json`."""
    target = Path(directory).absolute()
    _refuse_others(target)
    if keep and is_run(target):
        _refuse_others(old_place(target))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Beside the target, so that the last step is a rename within one file system.
        built = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            _write(trace, built, extra_meta or {})
            _put_in_place(built, target, keep)
        finally:
            shutil.rmtree(built, ignore_errors=True)
    except OSError as error:
        raise TracerError(
            f"{target}: cannot be written ({error.strerror or error})", rule="run.unwritable"
        ) from None
    return target


class _Damaged(Exception):
    """A file of a run that cannot be read: its name, and what is wrong with it."""


def load_run(directory: str | os.PathLike[str]) -> Trace:
    """Read a saved run. Where a table is lost that the others do without, a note says so."""
    path = Path(directory)
    meta = read_run_meta(path)
    try:
        tables, lost = _read_tables(path, meta)
        return Trace(
            events=tables.pop(_EVENTS),
            tables=tables,
            meta=_trace_meta(meta["trace"]),
            notes=(*(Note(**_known(Note, note)) for note in meta["notes"]), *lost),
        )
    except _Damaged as damage:
        raise _broken(path, str(damage)) from None
    except SchemaError as error:
        raise _broken(path, str(error)) from None
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _broken(path, f"{META_FILE} or a table holds something else than it should") from None


def read_run_meta(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """What `meta.json` of a saved run says; refused when this version cannot read the run."""
    path = Path(directory)
    if not path.is_dir():
        raise RunFormatError(f"{path}: there is no such directory of a saved run")
    try:
        meta = json.loads((path / META_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        if (path / _file_name(_EVENTS)).is_file():
            raise _broken(path, f"{META_FILE} is missing") from None
        raise RunFormatError(f"{path}: no {META_FILE} in it, so it is no saved run") from None
    except (OSError, ValueError) as error:
        raise _broken(path, _what_is_wrong(path / META_FILE, error)) from None
    found = meta.get("format") if isinstance(meta, dict) else None
    if found != FORMAT:
        raise RunFormatError(
            f"{path}: saved as {found or 'no format of ours'}, this build reads {FORMAT}; "
            "use the version that saved it, or save it again from its trace"
        )
    return dict(meta)


def is_run(directory: str | os.PathLike[str]) -> bool:
    """Whether a directory holds a saved run, of whatever version."""
    try:
        meta = json.loads((Path(directory) / META_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(meta, dict) and str(meta.get("format", "")).startswith(_FAMILY)


def _broken(path: Path, what: str) -> RunFormatError:
    text = f"{path}: the saved run is broken ({what}); copy it again, or save it again"
    return RunFormatError(" ".join(text.split()))


def _refuse_others(target: Path) -> None:
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise RunFormatError(f"{target}: exists and is no directory; give another name")
    if target.is_dir() and any(target.iterdir()) and not is_run(target):
        raise RunFormatError(f"{target}: exists and is no saved run; give another directory")


def what_gives_way(directory: str | os.PathLike[str]) -> str:
    """In words, what becomes of the run that is in the place of another; empty for none."""
    if not is_run(directory):
        return ""
    kept = old_place(directory)
    older = ", in place of an older one" if is_run(kept) else ""
    return f"the run that was there is kept as {kept}{older}"


def _put_in_place(built: Path, target: Path, keep: bool) -> None:
    if target.exists() and keep and is_run(target):
        put_aside(target)
    elif target.exists():
        os.replace(target, built.parent / f"{built.name}.gone")
    try:
        os.replace(built, target)
    finally:
        shutil.rmtree(built.parent / f"{built.name}.gone", ignore_errors=True)


def _write(trace: Trace, directory: Path, extra_meta: Mapping[str, Any]) -> None:
    # mkdtemp makes a private directory; a run is as readable as any directory of the user's.
    directory.chmod(0o777 & ~_umask())
    tables = {_EVENTS: trace.events, **trace.tables}
    for name, table in tables.items():
        _write_table(table, directory / _file_name(name))
    meta = {
        **extra_meta,
        "format": FORMAT,
        "tracer": VERSION,
        "tables": {name: len(table) for name, table in tables.items()},
        "trace": _fields_of(trace.meta),
        "notes": [_fields_of(note) for note in trace.notes],
    }
    text = json.dumps(_jsonable(meta), indent=1, ensure_ascii=False)
    (directory / META_FILE).write_bytes(f"{text}\n".encode("utf-8", "replace"))


def _file_name(table: str) -> str:
    return f"{table}.parquet"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _fields_of(value: TraceMeta | Note) -> dict[str, Any]:
    return {known.name: getattr(value, known.name) for known in fields(value)}


def _jsonable(value: Any) -> Any:
    """The value in JSON's own types; what has none becomes text."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): _jsonable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(inner) for inner in value]
    if isinstance(value, set | frozenset):
        return sorted((_jsonable(inner) for inner in value), key=str)
    return value.item() if isinstance(value, np.generic) else str(value)


def _write_table(table: pd.DataFrame, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {name: _arrow_column(table[name]) for name in table.columns}
    texts = [name for name in columns if isinstance(table[name].dtype, pd.CategoricalDtype)]
    options: dict[str, Any] = {
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": texts,
        "dictionary_pagesize_limit": _DICTIONARY_BYTES,
        "write_statistics": False,
        "write_page_checksum": True,  # else changed bytes may pass as other numbers
    }
    pq.write_table(pa.table(columns), path, **options)


def _arrow_column(column: Any) -> Any:
    import pyarrow as pa

    if not isinstance(column.dtype, pd.CategoricalDtype):
        return pa.array(column.to_numpy())
    texts = [_storable(str(text)) for text in column.cat.categories]
    codes = column.cat.codes.to_numpy().astype(np.int32)
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(texts, pa.string()))


def _storable(text: str) -> str:
    """A path that is no valid UTF-8 reaches Python as lone surrogates, which no file takes."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _saved_tables(meta: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Tables of the run that this version knows; a later one may have written more."""
    saved = meta["tables"]
    if _EVENTS not in saved:
        raise KeyError(_EVENTS)
    return [(name, rows) for name, rows in saved.items() if name in _ALL_TABLES]


def _read_tables(path: Path, meta: Mapping[str, Any]) -> tuple[dict[str, pd.DataFrame], list[Note]]:
    """The tables that can be read, and a note on each that cannot."""
    tables: dict[str, pd.DataFrame] = {}
    lost: dict[str, str] = {}
    for name, rows in _saved_tables(meta):
        try:
            tables[name] = _read_table(path, name, rows)
        except _Damaged as damage:
            if name in _NEEDED:
                raise
            lost[name] = str(damage)
    for family in _TOGETHER:
        if lost.keys() & set(family):
            tables = {name: table for name, table in tables.items() if name not in family}
    return tables, [_lost_note(name, what) for name, what in lost.items()]


def _lost_note(name: str, what: str) -> Note:
    said = f"{what}: the report lacks what it held; copy the run again for a whole one"
    return Note("run.table_lost", said, detail={"table": name}, partial=True)


def _what_is_wrong(file: Path, error: Exception) -> str:
    """In plain words: what libraries say of a damaged file tells nobody what happened to it."""
    if isinstance(error, FileNotFoundError):
        return f"{file.name} is missing"
    if isinstance(error, OSError) and error.errno is not None:
        return f"{file.name} cannot be read: {os.strerror(error.errno)}"
    empty = file.is_file() and not file.stat().st_size
    return f"{file.name} is {'empty' if empty else 'cut short or damaged'}"


def _read_table(path: Path, name: str, rows: int) -> pd.DataFrame:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = path / _file_name(name)
    try:
        with pq.ParquetFile(file, page_checksum_verification=True) as stored:
            table = stored.read(use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise _Damaged(_what_is_wrong(file, error)) from None
    if table.num_rows != rows:
        raise _Damaged(f"{file.name} has {table.num_rows} rows, not {rows}")
    columns = _ALL_TABLES[name]
    kept = [column for column in columns if column in table.column_names]
    return make_table(columns, {c: _column_from(table.column(c), columns[c]) for c in kept})


def _column_from(column: Any, form: str) -> Any:
    if form not in ("text", "kind"):
        return column.to_numpy()
    whole = column.combine_chunks()
    codes = whole.indices.to_numpy()
    texts = whole.dictionary.to_pylist()
    if form == "text":
        return text_column(codes, texts)
    return np.array([KIND_CODE[text] for text in texts], dtype=np.int8)[codes]


def _trace_meta(saved: Mapping[str, Any]) -> TraceMeta:
    known = _known(TraceMeta, saved)
    known["process_groups"] = tuple(known.get("process_groups", ()))
    return TraceMeta(**known)


def _known(kind: type[TraceMeta] | type[Note], saved: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that this version has; a later one may have written more."""
    names = {known.name for known in fields(kind)}
    return {key: value for key, value in saved.items() if key in names}
