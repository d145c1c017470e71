"""Everything that a trace asks of the compiler: what compiled code calls and for which modules, and
what compiling cost and why. Loads no part of the compiler, and leaves none of it changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

import pandas as pd
from torch import nn

from tracer.collectors.compiling.compile_log import CompileLog
from tracer.collectors.compiling.compiled_graphs import CompiledGraphs
from tracer.collectors.compiling.compiled_records import GraphRecord, ModuleNames, address_of
from tracer.collectors.compiling.generated_ranges import GeneratedRanges
from tracer.collectors.compiling.launch_ranges import LaunchRanges
from tracer.collectors.import_watch import ImportWatch
from tracer.collectors.modules.module_tree import ModuleTree, unwrap
from tracer.events import SIDE_TABLES, make_table

# What earlier traces of this process understood, by the compiler's own key.
_known: dict[str, GraphRecord] = {}
_MOST_KNOWN = 4096
# Torch keeps a map from generated kernels to nodes from this level on.
_PROVENANCE_LEVEL = 1


class CompileEvents:
    """Watches the compiler between `start` and `close`; then `tables` holds what it saw."""

    def __init__(self, tree: ModuleTree, make_range: Callable[[str], Any]) -> None:
        self._tree = tree
        self._log = CompileLog()
        self._generated = GeneratedRanges()
        self._launches = LaunchRanges()
        names = ModuleNames(self._path_of, lambda: parameter_owners(tree))
        self._graphs = CompiledGraphs(
            names, self._generated.wrap, lambda: make_range("tracer::compiled code")
        )
        self._undo: list[Callable[[], None]] = []
        self._imports = ImportWatch(
            {
                "torch._dynamo.output_graph": self._graphs.watch_dynamo,
                "torch._inductor.config": self._raise_level,
                "torch._inductor.output_code": self._graphs.watch_inductor,
                "torch._inductor.runtime.triton_heuristics": self._launches.watch,
            }
        )
        self.tables: dict[str, pd.DataFrame] = {}

    def start(self) -> None:
        """Hook what is loaded of the compiler, and the rest when it is."""
        self._log.start()
        self._imports.start()

    def rest(self) -> None:
        """What runs until `wake` is as earlier calls tell."""
        self._launches.rest()

    def wake(self) -> None:
        """It may be otherwise again."""
        self._launches.wake()

    def close(self) -> None:
        """Undo every hook, and understand what was seen."""
        self._imports.close()
        self._log.close()
        self._generated.close()
        self._launches.close()
        self._graphs.close()
        while self._undo:
            self._undo.pop()()
        records = self._graphs.records(_known)
        _keep(records)
        self.tables = {**compiled_tables(records), "compile_events": self._log.table()}
        if self._graphs.failure is not None:
            raise self._graphs.failure

    def _raise_level(self, config: ModuleType) -> None:
        """Ask for the map from kernels to nodes; it is part of what the compiler caches."""
        trace: Any = getattr(config, "trace", None)
        level = getattr(trace, "provenance_tracking_level", None)
        if level != 0:  # this torch has none, or the program asked itself
            return
        trace.provenance_tracking_level = _PROVENANCE_LEVEL

        def lower() -> None:
            if trace.provenance_tracking_level == _PROVENANCE_LEVEL:
                trace.provenance_tracking_level = level

        self._undo.append(lower)

    def _path_of(self, key: int) -> tuple[str, str] | None:
        known = self._tree.record_by_id(key)
        return None if known is None else (known.path, known.type)


def _keep(records: Iterable[GraphRecord]) -> None:
    for record in records:
        if record.basis and record.key != "None":
            _known[record.key] = record
    while len(_known) > _MOST_KNOWN:
        _known.pop(next(iter(_known)))


def parameter_owners(tree: ModuleTree) -> dict[int, list[tuple[str, str]]]:
    """Address of a tensor -> the modules (path, class) that hold it as parameter or buffer."""
    owners: dict[int, list[tuple[str, str]]] = {}
    for root in tree.roots:
        for module in root.modules():
            record = tree.record_of(unwrap(module))
            for tensor in _own_tensors(module):
                place = (record.path, record.type)
                held = owners.setdefault(address_of(tensor), [])
                if place not in held:
                    held.append(place)
    owners.pop(0, None)  # tensors without memory
    return owners


def _own_tensors(module: nn.Module) -> Iterable[Any]:
    own = (*module._parameters.values(), *module._buffers.values())
    return (tensor for tensor in own if tensor is not None)


def compiled_tables(records: Iterable[GraphRecord]) -> dict[str, pd.DataFrame]:
    """The tables of compiled graphs."""
    graphs: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    modules: list[dict[str, Any]] = []
    for number, record in enumerate(records):
        graphs.append(_graph_row(number, record))
        modules += [_module_row(number, -1, path, kind, ()) for path, kind in record.modules]
        for place, call in enumerate(record.calls):
            operators = json.dumps(call.operators)
            calls.append(
                {
                    "graph": number,
                    "call": place,
                    "kernel": call.kernel,
                    "form": call.form,
                    "operators": operators,
                }
            )
            modules += [
                _module_row(number, place, source.path, source.type, source.operators)
                for source in call.sources
            ]
    return {
        "compiled_graphs": _table("compiled_graphs", graphs),
        "compiled_calls": _table("compiled_calls", calls),
        "compiled_modules": _table("compiled_modules", modules),
    }


def _graph_row(number: int, record: GraphRecord) -> dict[str, Any]:
    path, kind = record.root
    return {
        "graph": number,
        "key": record.key,
        "compile_id": record.compile_id,
        "backward": int(record.backward),
        "file": record.file,
        "basis": record.basis,
        "root": path,
        "root_type": kind,
    }


def _module_row(
    graph: int, call: int, path: str, kind: str, operators: tuple[str, ...]
) -> dict[str, Any]:
    return {
        "graph": graph,
        "call": call,
        "path": path,
        "type": kind,
        "operators": json.dumps(operators),
    }


def _table(name: str, rows: list[Mapping[str, Any]] | list[dict[str, Any]]) -> pd.DataFrame:
    columns = SIDE_TABLES[name]
    return make_table(columns, {column: [row[column] for row in rows] for column in columns})
