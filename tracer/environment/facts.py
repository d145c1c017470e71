"""What the probes answered, put in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracer.environment.ask import Answer
from tracer.environment.machine import Machine

Reply = Mapping[str, Any]


@dataclass(frozen=True)
class Field:
    """One value of a driver, or why there is none."""

    value: Any = None
    error: str | None = None

    def number(self) -> float | None:
        """The value if it is a number; some drivers answer with text such as `N/A`."""
        known = isinstance(self.value, int | float) and not isinstance(self.value, bool)
        return self.value if known else None


UNASKED = Field(error="not asked")


@dataclass(frozen=True)
class NvmlDevice:
    """One GPU of NVML."""

    index: int
    fields: Mapping[str, Field]

    def get(self, name: str) -> Field:
        return self.fields.get(name, UNASKED)

    @property
    def title(self) -> str:
        return f"GPU {self.index}"


@dataclass(frozen=True)
class Nvml:
    """Everything NVML and `cuInit` said."""

    error: str | None
    system: Mapping[str, Field]
    devices: tuple[NvmlDevice, ...]
    died_asking: str | None  # the question at which the library ended the process
    ending: str
    libcuda_error: str | None
    cu_init: int | None
    cu_version: int | None

    def get(self, name: str) -> Field:
        return self.system.get(name, UNASKED)

    @property
    def cuda_version(self) -> tuple[int, int] | None:
        """The CUDA version the driver supports, from either source."""
        for number in (self.get("cuda_driver_version").number(), self.cu_version):
            if number:
                return int(number) // 1000, int(number) % 1000 // 10
        return None


def read_nvml(answer: Answer) -> Nvml:
    """The NVML probe's replies by question."""
    asking: Reply | None = None
    system: dict[str, Field] = {}
    devices: dict[int, dict[str, Field]] = {}
    said: dict[str, Any] = {}
    for reply in answer.replies:
        if "asking" in reply:
            asking = reply if reply["asking"] is not None else None
        elif "field" in reply:
            found = Field(reply.get("value"), reply.get("error"))
            index = reply.get("device")
            fields = system if index is None else devices.setdefault(int(index), {})
            fields[str(reply["field"])] = found
        else:
            said.update(reply)
    died = None
    if answer.status != 0:
        died = _question(asking) if asking is not None else "an unknown field"
    return Nvml(
        error=said.get("nvml_error"),
        system=system,
        devices=tuple(NvmlDevice(index, fields) for index, fields in sorted(devices.items())),
        died_asking=died,
        ending=answer.ending,
        libcuda_error=said.get("libcuda_error"),
        cu_init=said.get("cu_init"),
        cu_version=said.get("cu_version"),
    )


def _question(asking: Reply) -> str:
    where = f" of GPU {asking['device']}" if "device" in asking else ""
    return f"{asking['asking']}{where}"


@dataclass(frozen=True)
class TaskEnd:
    """How one child of the torch probe went."""

    replies: tuple[Reply, ...] = ()
    ran: bool = False
    status: int | None = None
    late: bool = False
    error: str | None = None
    stderr: str = ""

    @property
    def ended_well(self) -> bool:
        return self.ran and self.status == 0

    @property
    def last_running(self) -> str | None:
        """What the child said it was about to do, and did not report."""
        last: str | None = None
        for reply in self.replies:
            last = reply.get("running") if "running" in reply else last
            if "ran" in reply or "attention" in reply:
                last = None
        return last


@dataclass(frozen=True)
class TorchDevice:
    """One GPU as torch sees it."""

    index: int
    name: str | None
    capability: tuple[int, int] | None
    memory_bytes: int | None
    uuid: str | None
    gcn: str | None


@dataclass(frozen=True)
class Torch:
    """Everything the torch probe said."""

    error: str | None  # why it did not import; `missing` if it is not installed
    import_ending: str  # how the process ended if the import took it along
    late: bool  # it was stopped at the deadline
    import_stderr: str
    wheel: Mapping[str, Any]
    cudnn_error: str | None
    libraries: tuple[str, ...]
    tasks: Mapping[str, TaskEnd]

    @property
    def imported(self) -> bool:
        return bool(self.wheel)

    @property
    def version(self) -> str:
        return str(self.wheel.get("version") or "")

    @property
    def cuda(self) -> str | None:
        return self.wheel.get("cuda")

    @property
    def hip(self) -> str | None:
        return self.wheel.get("hip")

    def task(self, name: str) -> TaskEnd:
        return self.tasks.get(name, TaskEnd())

    @property
    def cuda_available(self) -> bool | None:
        """None: the question was not answered."""
        for reply in self.task("device").replies:
            if "cuda_available" in reply:
                return bool(reply["cuda_available"])
        return None

    @property
    def devices(self) -> tuple[TorchDevice, ...]:
        named = [r for r in self.task("device").replies if "cuda_device" in r and "name" in r]
        return tuple(_torch_device(reply) for reply in named)


def _torch_device(reply: Reply) -> TorchDevice:
    capability = reply.get("capability")
    return TorchDevice(
        index=int(reply["cuda_device"]),
        name=reply.get("name"),
        capability=(int(capability[0]), int(capability[1])) if capability else None,
        memory_bytes=reply.get("memory_bytes"),
        uuid=reply.get("uuid"),
        gcn=reply.get("gcn"),
    )


def read_torch(answer: Answer) -> Torch:
    """The torch probe's replies by task."""
    said: dict[str, Any] = {}
    libraries: set[str] = set()
    started: list[str] = []
    by_task: dict[str, list[Reply]] = {}
    for reply in answer.replies:
        libraries.update(reply.get("libraries") or ())
        if "task" in reply:
            by_task.setdefault(str(reply["task"]), []).append(reply)
        else:
            started = list(reply.get("tasks") or started)
            said.update(reply)
    finished = said.get("stage") == "done"
    return Torch(
        error=said.get("torch_error"),
        import_ending="" if finished else answer.ending or "ended without an answer",
        late=answer.status is None,
        import_stderr=answer.error,
        wheel=said.get("torch") or {},
        cudnn_error=said.get("cudnn_error"),
        libraries=tuple(sorted(libraries)),
        tasks={name: _task_end(by_task.get(name, ())) for name in started},
    )


def _task_end(replies: Sequence[Reply]) -> TaskEnd:
    end = next((reply for reply in replies if "ended" in reply), None)
    error = next((str(reply["error"]) for reply in replies if _is_failure(reply)), None)
    return TaskEnd(
        replies=tuple(replies),
        ran=end is not None,
        status=end["ended"] if end is not None else None,
        late=bool(end["late"]) if end is not None else False,
        error=error,
        stderr=str(end["stderr"]) if end is not None else "",
    )


def _is_failure(reply: Reply) -> bool:
    return set(reply) == {"task", "error"}


@dataclass(frozen=True)
class Facts:
    """All that the checks judge."""

    machine: Machine
    nvml: Nvml
    torch: Torch
    extensions: tuple[str, ...] = ()  # names of those installed
    versions: Mapping[str, str] = field(default_factory=lambda: dict[str, str]())  # distributions
    requirements: Mapping[str, tuple[str, ...]] = field(
        default_factory=lambda: dict[str, tuple[str, ...]]()
    )
    compilers: Mapping[str, str] = field(default_factory=lambda: dict[str, str]())

    @property
    def has_nvidia(self) -> bool:
        """Whether anything says that there is an NVIDIA GPU."""
        count = self.nvml.get("count").number()
        return bool(count) or bool(self.machine.pci_gpus("0x10de"))
