"""`tracer plan` as text: the answer in a sentence, then what it rests on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.text import Text

from tracer.commands.console import bar, columns, shows_unicode, wrapped
from tracer.exporters.format import duration_text
from tracer.sizing.figures import number, walk_figures
from tracer.sizing.gpus import GB, TERA
from tracer.sizing.parallel import Split
from tracer.sizing.results import DevicePlan, Plan, SplitFit
from tracer.sizing.training import TrainingMemory

REGIME_NAMES = {"full": "full", "lora": "LoRA", "qlora": "QLoRA"}


def gigabytes(size: float) -> str:
    """`16.06 GB`, in units of 10^9 bytes; small sizes in smaller units."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(size) >= scale:
            places = 2 if size < 100 * scale else 0
            return f"{size / scale:,.{places}f} {unit}"
    return f"{int(size)} bytes"


def short_count(parameters: int) -> str:
    """`8.03B`."""
    for unit, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if parameters >= scale:
            return f"{parameters / scale:.3g}{unit}"
    return f"{parameters:,}"


def plan_lines(plan: Plan, width: int, *, asked_splits: bool, explain: bool) -> list[Text]:
    """All lines of the text output."""
    lines = wrapped(verdict(plan), width, style="bold")
    lines += _model_lines(plan, width)
    if len(plan.devices) > 1:
        lines += _comparison(plan, width)
    else:
        for device in plan.devices:
            lines += _device_lines(plan, device, width)
    lines += _training_lines(plan, width)
    single = plan.devices[0] if len(plan.devices) == 1 else None
    if plan.splits and (asked_splits or (single is not None and not single.inference.fits)):
        lines += _split_lines(plan, single, width, every=asked_splits)
    lines += _note_lines(plan, width)
    if explain:
        lines += explain_lines(plan, width)
    return lines


def verdict(plan: Plan) -> str:
    """The answer: does it fit, and how fast at best."""
    who = f"{_called(plan)} {plan.precision}"
    if len(plan.devices) != 1:
        return _verdict_of_many(plan, who)
    (device,) = plan.devices
    gpu = _memory_of(device)
    if device.inference.fits:
        return f"{who} fits {gpu}{_room(device)}{_floor(device)}."
    usable, weights = device.inference.usable_bytes, device.inference.weights_bytes
    reason = (
        f"the weights take {gigabytes(weights.value)} of {gigabytes(usable.value)} usable"
        if device.inference.longest_context_tokens == 0
        else "its cache leaves no room for the batch and context asked for"
    )
    return f"{who} does not fit {gpu}: {reason}{_split_advice(plan, device)}."


def _called(plan: Plan) -> str:
    return f"{plan.model.name} ({short_count(plan.model.parameters)} parameters)"


def _token_price(plan: Plan) -> str:
    if plan.kv_cache is None or not plan.kv_cache.bytes_per_token.value:
        return ""
    return f" and {number(plan.kv_cache.bytes_per_token.value)} bytes of KV cache a token"


def _memory_of(device: DevicePlan) -> str:
    memory = device.gpu.memory_bytes
    size = f"{memory / GB:.4g} GB " if memory is not None else ""
    return f"one {size}{device.gpu.kind} ({device.gpu.name})"


def _room(device: DevicePlan) -> str:
    inference = device.inference
    if inference.kv_tokens is not None:
        return f" with {number(inference.kv_tokens.value)} tokens of KV cache"
    if inference.longest_context_tokens:
        return f" with a context of up to {number(inference.longest_context_tokens)} tokens"
    return f" with {gigabytes(inference.kv_room_bytes.value)} to spare"


def _floor(device: DevicePlan) -> str:
    if device.decode:
        return f"; a decode step takes at least {duration_text(_first_floor(device))}"
    if device.prefill is not None:
        prompt = number(device.prefill.prompt_tokens)
        return f"; {prompt} tokens take at least {duration_text(device.prefill.floor_ns.value)}"
    return ""


def _first_floor(device: DevicePlan) -> float:
    return device.decode[0].limit.floor_ns.value


def _split_advice(plan: Plan, device: DevicePlan) -> str:
    fitting = [fit for fit in device.splits if fit.fits]
    if not fitting:
        return ""
    best = min(fitting, key=lambda fit: fit.tensor * fit.pipeline)
    room = f" with {number(best.kv_tokens.value)} tokens of KV cache" if best.kv_tokens else ""
    return f"; {best.tensor * best.pipeline} of them hold it{room}"


def _verdict_of_many(plan: Plan, who: str) -> str:
    fitting = [device for device in plan.devices if device.inference.fits]
    need = gigabytes(plan.weights[plan.precision].value)
    start = f"{who} takes {need} for its weights{_token_price(plan)}"
    if not plan.devices:
        return f"{start}."
    if not fitting:
        return f"{start}: it fits none of the {len(plan.devices)} GPUs alone."
    smallest = min(fitting, key=lambda device: device.gpu.memory_bytes or 0)
    return (
        f"{start}: it fits {len(fitting)} of the {len(plan.devices)} GPUs, "
        f"from {(smallest.gpu.memory_bytes or 0) / GB:.4g} GB."
    )


def _model_lines(plan: Plan, width: int) -> list[Text]:
    model = plan.model
    facts = [f"{number(model.parameters)} parameters, counted by {model.basis}"]
    if model.active_parameters != model.parameters:
        routed = f"{model.experts_per_token} of {model.experts} experts"
        facts.append(f"{number(model.active_parameters)} active a token ({routed})")
    sizes = [
        f"{number(value)} {name}"
        for value, name in (
            (model.layers, "layers"),
            (model.hidden, "hidden"),
            (model.heads, "heads"),
            (model.kv_heads, "KV heads"),
            (model.vocabulary, "vocabulary"),
        )
        if value is not None
    ]
    lines = [Text(), *_labelled("MODEL", "; ".join(facts), width)]
    if sizes:
        lines += _labelled("", ", ".join(sizes), width)
    weights = "   ".join(f"{key} {gigabytes(size.value)}" for key, size in plan.weights.items())
    lines += _labelled("WEIGHTS", weights, width)
    return lines + _cache_lines(plan, width)


def _labelled(label: str, text: str, width: int) -> list[Text]:
    lines = wrapped(f"{label:9}{text}" if label else " " * 9 + text, width, hanging=9)
    if not label:
        lines = wrapped(text, width, indent=9)
    if label:
        lines[0].stylize("bold", 0, len(label))
    return lines


def _cache_lines(plan: Plan, width: int) -> list[Text]:
    cache = plan.kv_cache
    if cache is None:
        return _labelled("KV CACHE", "not known", width)
    if not cache.layers:
        return _labelled("KV CACHE", "none: the model does not decode token by token", width)
    lines = _labelled("KV CACHE", "; ".join(_cache_facts(plan)), width)
    rows = [
        ["tokens", *(number(point.tokens) for point in cache.by_length)],
        ["a sequence", *(gigabytes(point.bytes) for point in cache.by_length)],
    ]
    return lines + columns(rows, indent=9)


def _cache_facts(plan: Plan) -> Iterable[str]:
    cache = plan.kv_cache
    if cache is None:
        return
    if cache.bytes_per_token.value:
        yield f"{number(cache.bytes_per_token.value)} bytes a token ({cache.dtype})"
    if cache.bytes_per_token_beyond_windows.value != cache.bytes_per_token.value:
        windows = sorted({c.window_tokens for c in cache.layers if c.window_tokens})
        reach = ", ".join(number(window) for window in windows)
        far = number(cache.bytes_per_token_beyond_windows.value)
        yield f"{far} beyond a window of {reach}"
    if cache.state_bytes_per_sequence.value:
        yield f"{gigabytes(cache.state_bytes_per_sequence.value)} of state a sequence"
    if cache.bytes_per_source_token.value:
        yield f"{number(cache.bytes_per_source_token.value)} bytes a token of the encoder"


def _rates(device: DevicePlan) -> str:
    gpu = device.gpu
    facts: list[str] = []
    if gpu.memory_bytes is not None:
        facts.append(f"{gpu.memory_bytes / GB:.4g} GB")
    if gpu.bandwidth_bytes_per_s is not None:
        facts.append(f"{gpu.bandwidth_bytes_per_s / GB:,.0f} GB/s")
    if gpu.bf16_flops_per_s is not None:
        facts.append(f"{gpu.bf16_flops_per_s / TERA:,.4g} TFLOP/s bf16")
    if gpu.fp8_flops_per_s is not None:
        facts.append(f"{gpu.fp8_flops_per_s / TERA:,.4g} fp8")
    return f"{', '.join(facts)} ({gpu.basis})"


def _device_lines(plan: Plan, device: DevicePlan, width: int) -> list[Text]:
    lines = [Text(), *wrapped(f"{device.gpu.name}: {_rates(device)}", width, style="bold")]
    if device.gpu.memory_bytes is not None:
        lines += _memory_lines(plan, device, width)
    lines += _sequence_lines(device, width)
    return lines + _speed_lines(device, width)


def _memory_lines(plan: Plan, device: DevicePlan, width: int) -> list[Text]:
    inference = device.inference
    total = float(device.gpu.memory_bytes or 0)
    weights, overhead = inference.weights_bytes.value, inference.overhead_bytes.value
    room = inference.kv_room_bytes.value
    blocks = "█▓▒" if shows_unicode() else "#=-"
    drawn = bar([(weights, blocks[0]), (overhead, blocks[1]), (room, blocks[2])], total, width - 6)
    caches = plan.kv_cache is not None and plan.kv_cache.layers
    room_name = "cache" if caches else "free"
    usable = gigabytes(inference.usable_bytes.value)
    legend = (
        f"{blocks[0]} weights {gigabytes(weights)}   {blocks[1]} overhead {gigabytes(overhead)}   "
        f"{blocks[2]} {room_name} {gigabytes(room)}   usable {usable} "
        f"of {gigabytes(total)}"
    )
    return [Text(f"  |{drawn}|"), *wrapped(legend, width, indent=2)]


def _sequence_lines(device: DevicePlan, width: int) -> list[Text]:
    inference = device.inference
    if not inference.sequences or not inference.fits:
        return []
    rows = [
        ["sequences of", *(number(entry.tokens) for entry in inference.sequences), "longest"],
        [
            "fit",
            *(number(entry.sequences) for entry in inference.sequences),
            number(inference.longest_context_tokens)
            if inference.longest_context_tokens is not None
            else "no limit",
        ],
    ]
    return columns(rows)


def _speed_lines(device: DevicePlan, width: int) -> list[Text]:
    rows = [["at best", "batch", "context", "a step", "tokens/s", "bound by"]]
    for point in device.decode:
        limit = point.limit
        bound = limit.bound if point.fits else f"{limit.bound}; too large"
        rows.append(
            [
                "decode",
                number(limit.batch),
                number(limit.context_tokens),
                duration_text(limit.floor_ns.value),
                f"{limit.tokens_per_second.value:,.0f}",
                bound,
            ]
        )
    if device.prefill is not None:
        prefill = device.prefill
        rows.append(
            [
                "prefill",
                "1",
                number(prefill.prompt_tokens),
                duration_text(prefill.floor_ns.value),
                f"{prefill.tokens_per_second.value:,.0f}",
                prefill.bound,
            ]
        )
    lines = columns(rows, align="lrrrrl") if len(rows) > 1 else []
    return lines + [
        line for remark in _speed_remarks(device) for line in wrapped(remark, width, indent=2)
    ]


def _speed_remarks(device: DevicePlan) -> Iterable[str]:
    if device.decode_floor_at_measured_copy_ns is not None and device.decode:
        rate = (device.gpu.measured_copy_bytes_per_s or 0) / GB
        floor = duration_text(device.decode_floor_at_measured_copy_ns.value)
        if rate and device.gpu.measured_copy_bytes_per_s != device.gpu.bandwidth_bytes_per_s:
            yield f"A copy was measured to reach {rate:,.0f} GB/s: at that rate {floor} a step."
    without = device.decode_floor_without_input_embedding_ns
    if without is not None and device.decode and without.value < 0.99 * _first_floor(device):
        yield (
            f"Of the input embedding a step needs single rows: without it "
            f"{duration_text(without.value)}."
        )
    if device.ridge_batch is not None and device.decode:
        ridges = [
            f"{name} {figure.value:,.0f}"
            for name, figure in (
                ("bf16", device.ridge_bf16_flops_per_byte),
                ("fp8", device.ridge_fp8_flops_per_byte),
            )
            if figure is not None
        ]
        yield (
            f"Bound by memory below a batch of {number(device.ridge_batch.value)}; ridge point "
            f"{', '.join(ridges)} FLOP a byte."
        )


def _comparison(plan: Plan, width: int) -> list[Text]:
    rows = [["GPU", "memory", "KV tokens", "decode", "tokens/s", "prefill", "fits to train"]]
    for device in plan.devices:
        limit = device.decode[0].limit if device.decode else None
        trained = [REGIME_NAMES[fit.regime] for fit in device.training if fit.fits]
        rows.append(
            [
                device.gpu.name,
                f"{(device.gpu.memory_bytes or 0) / GB:.4g} GB",
                _comparison_room(device),
                duration_text(limit.floor_ns.value) if limit and device.inference.fits else "-",
                f"{limit.tokens_per_second.value:,.0f}" if limit and device.inference.fits else "-",
                duration_text(device.prefill.floor_ns.value)
                if device.prefill and device.inference.fits
                else "-",
                ", ".join(trained) or ("none" if plan.training else "-"),
            ]
        )
    prompt = next((number(d.prefill.prompt_tokens) for d in plan.devices if d.prefill), "-")
    remark = f"One GPU each, at best: a decode step of batch 1, a prefill of {prompt} tokens."
    return [Text(), *columns(rows, indent=0, align="lrrrrrl"), *wrapped(remark, width)]


def _comparison_room(device: DevicePlan) -> str:
    inference = device.inference
    if not inference.fits:
        return "no"
    if inference.kv_tokens is not None:
        return number(inference.kv_tokens.value)
    if inference.longest_context_tokens:
        return number(inference.longest_context_tokens)
    return "yes"


def _training_lines(plan: Plan, width: int) -> list[Text]:
    if not plan.training:
        return []
    single = plan.devices[0] if len(plan.devices) == 1 else None
    rows = [["TRAINING", "weights", "gradients", "optimizer", "activations", "total", "one GPU"]]
    for index, memory in enumerate(plan.training):
        rows.append(_training_row(memory, single, index))
    if single is None:
        rows = [row[:-1] for row in rows]
    lines = [Text(), *columns(rows, indent=0, align="lrrrrrl")]
    lines[1].stylize("bold", 0, 8)
    extra = plan.training[0].activations_without_checkpointing_bytes.value
    remark = (
        "Activations are an estimate, attention not materialised; without checkpointing they "
        f"take {gigabytes(extra)}."
    )
    if any("sharded" in row[-1] for row in rows):
        remark += " Sharded: over so many GPUs weights, gradients and optimizer fit (FSDP)."
    return lines + wrapped(remark, width)


def _training_row(memory: TrainingMemory, device: DevicePlan | None, index: int) -> list[str]:
    fits = ""
    if device is not None and device.gpu.memory_bytes is not None:
        fit = device.training[index]
        fits = "fits" if fit.fits else "no"
        if not fit.fits and fit.gpus_sharded is not None:
            fits += f" ({fit.gpus_sharded} sharded)"
    return [
        REGIME_NAMES[memory.regime],
        gigabytes(memory.weights_bytes.value),
        gigabytes(memory.gradients_bytes.value),
        gigabytes(memory.optimizer_bytes.value),
        gigabytes(memory.activations_bytes.value),
        gigabytes(memory.total_bytes.value),
        fits,
    ]


def _split_lines(plan: Plan, device: DevicePlan | None, width: int, *, every: bool) -> list[Text]:
    rows = [["SPLIT", "weights a GPU", "KV a token", "cache holds", "decode"]]
    for index, split in enumerate(plan.splits):
        rows.append(_split_row(split, device.splits[index] if device is not None else None))
    lines = [Text(), *columns(rows, indent=0)]
    lines[1].stylize("bold", 0, 5)
    for split in plan.splits if every else _recommended(plan, device):
        for text in _transfer_texts(split):
            lines += wrapped(text, width, indent=2, hanging=4)
    if device is not None:
        lines += wrapped("The decode floor counts memory alone, no transfers.", width)
    return lines


def _recommended(plan: Plan, device: DevicePlan | None) -> list[Split]:
    """The split over the fewest GPUs that fits."""
    if device is None:
        return []
    fitting = [s for s, fit in zip(plan.splits, device.splits, strict=True) if fit.fits]
    return sorted(fitting, key=lambda split: split.gpus)[:1]


def _split_name(split: Split) -> str:
    name = f"tensor {split.tensor}"
    return name if split.pipeline == 1 else f"{name} x pipeline {split.pipeline}"


def _split_row(split: Split, fit: SplitFit | None) -> list[str]:
    if split.obstacle is not None:
        return [_split_name(split), "-", "-", split.obstacle, "-"]
    holds = "-"
    if fit is not None:
        holds = "does not fit"
        if fit.fits:
            holds = f"{number(fit.kv_tokens.value)} tokens" if fit.kv_tokens else "fits"
    floor = fit.decode_floor_ns if fit is not None else None
    return [
        _split_name(split),
        gigabytes(split.weights_bytes_per_gpu.value),
        gigabytes(split.kv_bytes_per_token_per_gpu.value),
        holds,
        duration_text(floor.value) if floor is not None else "-",
    ]


def _transfer_texts(split: Split) -> Sequence[str]:
    if split.obstacle is not None:
        return []
    return [
        f"{_split_name(split)}, a forward: {number(entry.count.value)} {entry.op} "
        f"({entry.where}), each {gigabytes(entry.decode_bytes_each.value)} in decode, "
        f"{gigabytes(entry.prefill_bytes_each.value)} in prefill"
        for entry in split.collectives
    ]


def _note_lines(plan: Plan, width: int) -> list[Text]:
    lines: list[Text] = []
    for note in plan.model.notes:
        lines += wrapped(f"Note: {note}.", width, hanging=6)
    return [Text(), *lines] if lines else []


def explain_lines(plan: Plan, width: int) -> list[Text]:
    """Every figure with its formula."""
    lines = [Text(), Text("FORMULAS", style="bold")]
    for path, figure in walk_figures(plan):
        text = f"{path} = {figure.formula} = {number(figure.value)}"
        lines += wrapped(text, width, indent=2, hanging=6)
    return lines
