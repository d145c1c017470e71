"""Tables for notebooks and databases: `kernels.parquet`, a row for each kernel, copy and set."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tracer.analysis import BUCKETS, GROUPS, Analysis
from tracer.errors import DeliveryError

KERNELS_FILE = "kernels.parquet"


def write_parquet(analysis: Analysis, out: Path) -> list[Path]:
    """Write the table of kernels to `out`: a `.parquet` file, else a directory that holds it."""
    path = out if out.suffix == ".parquet" else out / KERNELS_FILE
    arrow: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    table = arrow.Table.from_pandas(kernel_table(analysis), preserve_index=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(table, path, compression="zstd")
    except OSError as error:
        raise DeliveryError(f"{path}: the table could not be written: {error.strerror}") from error
    return [path]


def kernel_table(analysis: Analysis) -> pd.DataFrame:
    """The work of a recording in order of time. An unknown module or step is null.

    `in_window` tells the rows that the report counts; `charged_ns` is what the accounting gives
    each, which sums to the busy time.
    """
    trace, work = analysis.trace, analysis.work
    event = work["event"].to_numpy()
    events = trace.events.iloc[event].reset_index(drop=True)
    bucket = work["bucket"].to_numpy()
    step = pd.array(work["step"].to_numpy(), dtype="Int64")
    step[work["step"].to_numpy() < 0] = pd.NA
    window, start, end = analysis.window, trace.start_ns[event], trace.end_ns[event]
    return pd.DataFrame(
        {
            "correlation": events["correlation"].to_numpy().astype(np.int64),
            "device": work["device"].to_numpy(),
            "stream": events["stream"].to_numpy().astype(np.int64),
            "start_ns": start,
            "duration_ns": end - start,
            "name": events["name"].cat.remove_unused_categories(),
            "group": _labels(bucket, [group for group, _ in BUCKETS], list(GROUPS)),
            "part": _labels(bucket, [part for _, part in BUCKETS]),
            "module": _modules(analysis),
            "step": step,
            "how": work["how"].to_numpy(),
            "confidence": work["confidence"].to_numpy(),
            "charged_ns": work["charged_ns"].to_numpy(),
            "in_window": (start < window.end_ns) & (end > window.start_ns),
        }
    )


def _labels(codes: Any, label_of_code: list[str], labels: list[str] | None = None) -> Any:
    """A categorical from codes into a list that names some labels several times."""
    distinct = list(dict.fromkeys(label_of_code)) if labels is None else labels
    place = np.array([distinct.index(label) for label in label_of_code])
    return pd.Categorical.from_codes(place[codes], categories=pd.Index(distinct))


def _modules(analysis: Analysis) -> Any:
    paths = pd.Index(analysis.modules["path"].astype(str).to_numpy(), dtype=object)
    rows = analysis.work["module"].to_numpy()
    if not len(paths):
        return pd.Categorical.from_codes(
            np.full(len(rows), -1), categories=pd.Index([], dtype=object)
        )
    return pd.Categorical.from_codes(rows, categories=paths)
