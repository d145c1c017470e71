"""What was run: CUDA from torch, precisions, attention backends, the profiler."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tracer.environment.ask import describe_ending
from tracer.environment.check_driver import check_driver
from tracer.environment.check_wheel import crash_place, first_line
from tracer.environment.facts import Facts, Reply, TaskEnd
from tracer.environment.rows import Row, error, not_checked, ok, warning

_BACKENDS = {
    "FLASH_ATTENTION": "flash",
    "EFFICIENT_ATTENTION": "efficient",
    "CUDNN_ATTENTION": "cuDNN",
    "MATH": "math",
}


def check_cuda(facts: Facts) -> Iterable[Row]:
    """Whether torch reaches the GPUs, and a kernel on each ran."""
    torch, end = facts.torch, facts.torch.task("device")
    if not torch.imported or (torch.cuda is None and torch.hip is None):
        return
    broken = _broken_row(end, "cuda.crash", "CUDA from torch")
    if broken is not None:
        yield broken
        return
    if torch.cuda_available is False:
        yield from _unavailable_rows(facts, end)
        return
    ran = [reply for reply in end.replies if reply.get("ran") == "kernel"]
    wrong = [str(reply["cuda_device"]) for reply in ran if not reply.get("ok")]
    if wrong:
        yield error(
            "cuda.wrong_result",
            "CUDA from torch",
            f"a sum on GPU {', '.join(wrong)} gave a wrong result",
            "the GPU or its memory is faulty: run dcgmi diag -r 3",
        )
    elif ran:
        yield ok("cuda", "CUDA from torch", f"a kernel ran on {len(ran)} of {len(ran)} GPUs")


def _unavailable_rows(facts: Facts, end: TaskEnd) -> Iterable[Row]:
    told = next((r["cuda_error"] for r in end.replies if r.get("cuda_error")), "no reason told")
    if not _has_gpu(facts):
        yield not_checked("cuda", "CUDA from torch", f"no GPU to ask: {told}")
        return
    if any(row.status == "error" for row in check_driver(facts)):
        yield not_checked("cuda", "CUDA from torch", f"follows from the driver: {told}")
        return
    yield error(
        "cuda.unavailable",
        "CUDA from torch",
        f"torch does not reach the GPU: {told}",
        "check CUDA_VISIBLE_DEVICES and the container's GPUs; a plain torch.cuda.init() says more",
    )


def _has_gpu(facts: Facts) -> bool:
    """Whether there is a GPU of the kind that this torch is built for, with its driver."""
    if facts.torch.hip is not None:
        return facts.machine.exists("/dev/kfd")
    return facts.nvml.error is None and facts.has_nvidia


def _broken_row(end: TaskEnd, rule: str, subject: str) -> Row | None:
    """A child that crashed, hung or failed; None if it ended well."""
    if not end.ran:
        return not_checked(rule, subject, "not run: torch did not import, or the time was up")
    if end.ended_well:
        return None
    doing = f" in {end.last_running}" if end.last_running else ""
    if end.late:
        return warning(
            rule,
            subject,
            f"did not answer in time{doing}",
            "run again with --timeout 120; if it hangs again, look into dmesg for Xid",
        )
    if end.status is not None and end.status < 0:
        how = describe_ending(end.status)
        remedy = "reinstall torch; if a plain torch program crashes too, check the driver"
        return error(rule, subject, f"{how}{doing}{crash_place(end.stderr)}", remedy)
    told = first_line(end.error or end.stderr) or describe_ending(end.status)
    remedy = "run the same in plain torch for the whole message"
    return error(rule, subject, f"failed{doing}: {told}", remedy)


def check_precisions(facts: Facts) -> Iterable[Row]:
    """bf16 and fp8 matrix multiplications, run on the first GPU."""
    for reply in facts.torch.task("device").replies:
        name = reply.get("ran")
        if name not in ("bf16", "fp8"):
            continue
        if reply.get("ok"):
            yield ok(f"precision.{name}", name, f"a {name} matrix multiplication ran")
        elif name == "fp8":
            yield ok(
                "precision.fp8",
                "fp8",
                f"not on this GPU: {reply.get('error')} (needs 8.9 or newer)",
            )
        else:
            yield warning(
                "precision.bf16",
                "bf16",
                f"does not run here: {reply.get('error')}",
                "use fp16, or a GPU of compute capability 8.0 or newer",
            )


def check_attention(facts: Facts) -> Iterable[Row]:
    """Which backends of scaled_dot_product_attention work, by having run each."""
    torch = facts.torch
    on_gpu = bool(torch.cuda_available)
    name = "device" if on_gpu else "attention:cpu"
    end = torch.task(name)
    if not torch.imported:
        return
    answers = [reply for reply in end.replies if "attention" in reply]
    broken = _broken_row(end, "attention.crash", "attention") if not on_gpu else None
    if broken is not None:
        yield broken
    if not answers:
        return
    works = [_BACKENDS.get(str(r["attention"]), "?") for r in answers if r.get("ok")]
    fails = [r for r in answers if not r.get("ok") and "error" not in r]
    refused = [r for r in answers if not r.get("ok") and "error" in r]
    where = "on the GPU" if on_gpu else "on the CPU"
    text = f"{', '.join(works) or 'none'} ran {where} (bf16)"
    if refused:
        names = ", ".join(_BACKENDS.get(str(r["attention"]), "?") for r in refused)
        text += f"; refused: {names}"
    if fails:
        yield _wrong_row(fails)
    elif on_gpu and "flash" not in works:
        why = next((str(r["error"]) for r in refused if r["attention"] == "FLASH_ATTENTION"), "")
        yield warning(
            "attention.no_flash",
            "attention",
            f"{text}: {first_line(why)}",
            "flash attention needs compute capability 8.0; use the efficient backend",
        )
    else:
        yield ok("attention", "attention", text, refused=[dict(r) for r in refused])


def _wrong_row(fails: Sequence[Reply]) -> Row:
    names = ", ".join(_BACKENDS.get(str(reply["attention"]), "?") for reply in fails)
    return error(
        "attention.wrong_result",
        "attention",
        f"{names} differs from the plain attention",
        "do not use it here: torch.backends.cuda.enable_…_sdp(False); report it to pytorch",
    )


def check_profiler(facts: Facts) -> Iterable[Row]:
    """Whether a recording holds what it should."""
    if not facts.torch.imported:
        return
    end = facts.torch.task("profiler")
    broken = _broken_row(end, "profiler.crash", "torch.profiler")
    if broken is not None:
        yield broken
        return
    said = {key: value for reply in end.replies for key, value in reply.items()}
    host, device = int(said.get("profiler_host_rows", 0)), int(said.get("profiler_device_rows", 0))
    if said.get("profiler_cuda") and device == 0:
        yield error(
            "profiler.no_device_rows",
            "torch.profiler",
            f"{host} host rows and no device row: CUPTI is taken by another tool, or forbidden",
            "stop Nsight, DCGM profiling and other profilers of this GPU (see below)",
        )
    elif host == 0:
        yield error(
            "profiler.no_rows",
            "torch.profiler",
            "a recording came back empty",
            "unset KINETO_* variables, and see whether another profiler is attached",
        )
    else:
        rows = f"{host} host and {device} device rows" if device else f"{host} host rows"
        yield ok("profiler", "torch.profiler", f"a short recording has {rows}")


def check_interfaces(facts: Facts) -> Iterable[Row]:
    """Which private interfaces of torch tracer uses here, and what it does without them."""
    if not facts.torch.imported:
        return
    end = facts.torch.task("interfaces")
    listed = next((r["interfaces"] for r in end.replies if r.get("interfaces")), None)
    if not listed:
        reason = next((r["reason"] for r in end.replies if r.get("reason")), None)
        yield not_checked(
            "interfaces", "private interfaces", reason or end.error or "the capture did not answer"
        )
        return
    subject = "private interface"
    for name, found, fallback in listed:
        if found:
            text = f"{name}: found and used; without it, {fallback}"
            yield ok("interfaces", subject, text, name=name, fallback=fallback)
        else:
            yield warning(
                "interfaces.fallback",
                subject,
                f"{name}: not in torch {facts.torch.version}; so {fallback}",
                "nothing to do; a newer tracer may know this torch",
                name=name,
                fallback=fallback,
            )
