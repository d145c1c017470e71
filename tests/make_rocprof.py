"""Small recordings as rocprofv3 writes them: its JSON, and its tables as CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.make_nsys import range_text
from tracer.events import Trace

Record = dict[str, Any]
Row = Mapping[str, Any]
HIP_CALLS = ["hipLaunchKernel", "hipMemcpyAsync", "hipStreamSynchronize", "hipGraphLaunch"]
DOMAINS: list[Record] = [
    {"kind": "NONE", "operations": []},
    {"kind": "HSA_CORE_API", "operations": ["hsa_init", "hsa_signal_store_screlease"]},
    {"kind": "HIP_RUNTIME_API_EXT", "operations": HIP_CALLS},
    {"kind": "MARKER_CORE_RANGE_API", "operations": ["roctxMarkA", "roctxThreadRangeA"]},
    {"kind": "MARKER_CONTROL_API", "operations": ["roctxProfilerPause"]},
    {"kind": "RCCL_API", "operations": ["ncclAllReduce", "ncclGroupEnd"]},
    {
        "kind": "MEMORY_COPY",
        "operations": [
            f"MEMORY_COPY_{word}"
            for word in (
                "NONE HOST_TO_HOST HOST_TO_DEVICE DEVICE_TO_HOST DEVICE_TO_DEVICE".split()  # noqa: SIM905
            )
        ],
    },
    {"kind": "KERNEL_DISPATCH", "operations": ["NONE", "ENQUEUE", "COMPLETE"]},
    {"kind": "MEMORY_ALLOCATION", "operations": ["NONE", "ALLOCATE", "VMEM_ALLOCATE", "FREE"]},
    {"kind": "SCRATCH_MEMORY", "operations": ["NONE", "SCRATCH_MEMORY_ALLOC"]},
]
HSA, HIP, MARKER, CONTROL, RCCL, COPY, KERNEL, ALLOCATION, SCRATCH = range(1, 10)
CPU_AGENT, FIRST_GPU = 100, 101
SYMBOLS = {
    1: "void gemm<float>(float*)",
    2: "__amd_rocclr_copyBuffer",
    3: "softmax_kernel(float*)",
}


def _row(kind: int, operation: int, at: int, length: int, correlation: int, thread: int) -> Record:
    return {
        "size": 64,
        "kind": kind,
        "operation": operation,
        "correlation_id": {"internal": correlation, "external": 0},
        "start_timestamp": at,
        "end_timestamp": at + length,
        "thread_id": thread,
    }


def call(name: str, at: int, length: int, correlation: int, thread: int = 7) -> Record:
    return _row(HIP, HIP_CALLS.index(name), at, length, correlation, thread) | {
        "args": [{"type": "dim3", "name": "a", "value": "{x=1}"}, {"type": "int", "name": "b"}],
        "retval": {"hipError_t_retval": 0},
    }


def named(kind: int, name: str, at: int, length: int, correlation: int, thread: int = 7) -> Record:
    """A call of another domain."""
    return _row(kind, DOMAINS[kind]["operations"].index(name), at, length, correlation, thread)


def kernel(
    symbol: int, at: int, length: int, correlation: int, *, gpu: int = 0, stream: int | None = 0
) -> Record:
    placed = {} if stream is None else {"stream_id": {"handle": stream}}
    return _row(KERNEL, 2, at, length, correlation, 7) | {
        "dispatch_info": {
            "size": 72,
            "agent_id": {"handle": FIRST_GPU + gpu},
            "queue_id": {"handle": 3},
            "kernel_id": symbol,
            "dispatch_id": correlation,
            "group_segment_size": 512,
            "workgroup_size": {"x": 64, "y": 2, "z": 1},
            "grid_size": {"x": 640, "y": 5, "z": 1},
        },
        **placed,
    }


def copy(
    word: str, at: int, length: int, correlation: int, size: int, source: int, target: int
) -> Record:
    return named(COPY, f"MEMORY_COPY_{word}", at, length, correlation) | {
        "src_agent_id": {"handle": source},
        "dst_agent_id": {"handle": target},
        "bytes": size,
        "stream_id": {"handle": 2},
    }


def allocation(name: str, at: int, correlation: int, size: int, address: Any) -> Record:
    agent = FIRST_GPU if name != "FREE" else 0
    return named(ALLOCATION, name, at, 5, correlation) | {
        "agent_id": {"handle": agent},
        "address": address,
        "allocation_size": size,
    }


def agents() -> list[Record]:
    """A CPU, and two GPUs of which the second stands first."""
    gpu = {"type": 2, "name": "gfx942", "product_name": "AMD Instinct MI300X", "cu_count": 304}
    gpu |= {"gfx_target_version": 90402, "mem_banks": [{"size_in_bytes": 2**30}] * 2}
    return [
        {"id": {"handle": CPU_AGENT}, "type": 1, "name": "EPYC", "cu_count": 64},
        gpu
        | {"id": {"handle": 102}, "node_id": 2, "logical_node_id": 2, "logical_node_type_id": 1},
        gpu
        | {"id": {"handle": 101}, "node_id": 1, "logical_node_id": 1, "logical_node_type_id": 0},
    ]


def process(
    pid: int = 7, messages: Mapping[int, str] | None = None, **lists: Sequence[Record]
) -> Record:
    """One process with these lists of records."""
    return {
        "metadata": {
            "node": {"machine_id": "m", "hostname": "box"},
            "pid": pid,
            "command": ["python", "a.py"],
        },
        "agents": agents(),
        "strings": {
            "buffer_records": DOMAINS,
            "marker_api": [{"key": key, "value": text} for key, text in (messages or {}).items()],
        },
        "kernel_symbols": [
            {
                "kernel_id": number,
                "kernel_name": "_Z4",
                "formatted_kernel_name": name.partition("<")[0],
                "demangled_kernel_name": f"{name}.kd",
                "arch_vgpr_count": 32,
            }
            for number, name in SYMBOLS.items()
        ],
        "callback_records": {"counter_collection": []},
        "buffer_records": {key: list(rows) for key, rows in lists.items()},
    }


def json_text(*processes: Record) -> bytes:
    return json.dumps({"rocprofiler-sdk-tool": list(processes)}, separators=(",", ":")).encode()


def json_file(directory: Path, *processes: Record, name: str = "7_results.json") -> Path:
    path = directory / name
    path.write_bytes(json_text(*processes))
    return path


# --- tables --------------------------------------------------------------------------------------

CALL_COLUMNS = (
    "Domain", "Function", "Process_Id", "Thread_Id", "Correlation_Id", "Start_Timestamp",
    "End_Timestamp",
)  # fmt: skip


def kernel_row(name: str, at: int, length: int, correlation: int, **more: Any) -> Record:
    return {
        "Kind": "KERNEL_DISPATCH",
        "Agent_Id": "Agent 4",
        "Queue_Id": 1,
        "Stream_Id": 2,
        "Thread_Id": 7,
        "Dispatch_Id": correlation,
        "Kernel_Id": 9,
        "Kernel_Name": name,
        "Correlation_Id": correlation,
        "Start_Timestamp": at,
        "End_Timestamp": at + length,
        "LDS_Block_Size": 1024,
        "Scratch_Size": 0,
        "VGPR_Count": 16,
        "Workgroup_Size_X": 64,
        "Workgroup_Size_Y": 1,
        "Workgroup_Size_Z": 1,
        "Grid_Size_X": 640,
        "Grid_Size_Y": 3,
        "Grid_Size_Z": 1,
        **more,
    }


def call_row(
    function: str, at: int, length: int, correlation: int, domain: str = "HIP_RUNTIME_API_EXT",
    pid: int = 7,
) -> Record:  # fmt: skip
    values = (domain, function, pid, pid, correlation, at, at + length)
    return dict(zip(CALL_COLUMNS, values, strict=True))


def copy_row(direction: str, at: int, length: int, correlation: int, *ends: str) -> Record:
    return {
        "Kind": "MEMORY_COPY",
        "Direction": f"MEMORY_COPY_{direction}",
        "Stream_Id": 3,
        "Source_Agent_Id": ends[0],
        "Destination_Agent_Id": ends[1],
        "Correlation_Id": correlation,
        "Start_Timestamp": at,
        "End_Timestamp": at + length,
    }


def agent_row(node: int, kind: str, name: str = "") -> Record:
    return {
        "Node_Id": node,
        "Logical_Node_Id": node,
        "Agent_Type": kind,
        "Cu_Count": 304,
        "Gfx_Target_Version": 90402 if kind == "GPU" else 0,
        "Local_Mem_Size": 0,
        "Name": "gfx942",
        "Product_Name": name,
    }


def csv_text(rows: Sequence[Row], columns: Sequence[str] | None = None) -> str:
    """Texts in quotes and numbers bare, as the tool writes them."""
    out = io.StringIO()
    writer = csv.DictWriter(
        out, columns or list(rows[0]), quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def csv_file(path: Path, rows: Sequence[Row], columns: Sequence[str] | None = None) -> Path:
    path.write_text(csv_text(rows, columns))
    return path


# --- another recording, as rocprofv3 would have written it ---------------------------------------


def recorded(trace: Trace, pid: int = 4321) -> Record:
    """The process of a recording: operators as ranges of `emit_nvtx`, modules as those of hooks for
    layers, sets as the kernels that ROCm runs for them. Copies keep their direction and size."""
    base = int(trace.start_ns.min()) - 1_000_000
    calls = dict.fromkeys(trace.events["name"][trace.of_kind("runtime")].astype(str))
    lists: dict[str, list[Record]] = {
        "hip_api": [], "marker_api": [], "kernel_dispatch": [], "memory_copy": [],
    }  # fmt: skip
    names: dict[str, int] = {}
    messages: dict[int, str] = {}
    sides = {name: trace.table(name).set_index("event") for name in _SIDES}
    tids = trace.table("threads")["tid"].tolist()
    events: Any = trace.events.itertuples()
    for row, event in enumerate(events):
        at, length, kind = int(event.start_ns) - base, int(event.duration_ns), str(event.kind)
        on = tids[event.thread] if event.thread >= 0 else 0
        correlation = int(event.correlation)
        if kind == "runtime":
            operation = list(calls).index(str(event.name))
            lists["hip_api"].append(_row(HIP, operation, at, length, correlation, on))
        elif kind in ("kernel", "memset"):
            said = str(event.name) if kind == "kernel" else "__amd_rocclr_fillBufferAligned"
            number = names.setdefault(said, len(names))
            gpu, stream = int(event.device), int(event.stream)
            made = kernel(number, at, length, correlation, gpu=gpu, stream=stream)
            made["dispatch_info"] |= _geometry(sides["geometry"], row)
            made["dispatch_info"]["dispatch_id"] = len(lists["kernel_dispatch"]) + 1
            lists["kernel_dispatch"].append(made)
        elif kind == "memcpy":
            lists["memory_copy"].append(_copied(sides["copies"].loc[row], event, at))
        elif kind in ("operator", "annotation", "module"):
            messages[row] = range_text(kind, str(event.name), sides, row)
            lists["marker_api"].append(named(MARKER, "roctxThreadRangeA", at, length, row, on))
    found = process(pid, messages, **lists)
    domains = [dict(domain) for domain in DOMAINS]
    domains[HIP]["operations"] = list(calls)
    found["strings"]["buffer_records"] = domains
    found["agents"] = _gpus(trace)
    found["kernel_symbols"] = [
        {"kernel_id": number, "demangled_kernel_name": name} for name, number in names.items()
    ]
    return found


_SIDES = ("sequences", "shapes", "copies", "geometry")


def _gpus(trace: Trace) -> list[Record]:
    devices: Any = trace.table("devices")
    return [
        {
            "id": {"handle": FIRST_GPU + int(device)},
            "type": 2,
            "product_name": str(name),
            "logical_node_type_id": int(device),
            "cu_count": int(units),
        }
        for device, name, units in zip(
            devices["device"], devices["name"], devices["sm_count"], strict=True
        )
    ]


def _geometry(table: Any, row: int) -> Record:
    if row not in table.index:
        return {"grid_size": {}, "workgroup_size": {}}
    found = table.loc[row]
    blocks, threads = int(found["blocks"]), int(found["threads_per_block"])
    return {
        "grid_size": {"x": blocks * threads, "y": 1, "z": 1},
        "workgroup_size": {"x": threads, "y": 1, "z": 1},
        "group_segment_size": int(found["shared_memory_bytes"]),
    }


def _copied(found: Any, event: Any, at: int) -> Record:
    here, there = FIRST_GPU + int(event.device), CPU_AGENT
    word = str(found["direction"]).upper()
    ends = {"HOST_TO_DEVICE": (there, here), "DEVICE_TO_HOST": (here, there)}
    source, target = ends.get(word, (here, here))
    made = copy(
        word,
        at,
        int(event.duration_ns),
        int(event.correlation),
        int(found["bytes"]),
        source,
        target,
    )
    return made | {"stream_id": {"handle": int(event.stream)}}
