"""Module ranges: names for any tree, and no change to what compilers, tracers and wrappers do."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Generator
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from tests.live_models import Block, OwnModel, decoder, prompt
from tracer import trace
from tracer.collectors import torch_private
from tracer.collectors.modules import module_ranges
from tracer.collectors.modules.module_tree import ModuleTree, is_block, unwrap, walk
from tracer.events import Trace
from tracer.live import capture
from tracer.tui.look import Look
from tracer.tui.model.modules import build_modules, modules_table, shown_rows

pytestmark = pytest.mark.usefixtures("one_thread", "quietly")


def ranges(recorded: Trace) -> dict[str, int]:
    """How often each module wrote its range."""
    rows = recorded.events[recorded.events["kind"] == "module"]
    counts = rows["name"].value_counts()
    return {str(name): int(n) for name, n in counts.items() if n}


def ranges_of(program: Callable[[], object], detail: Any = "full") -> dict[str, int]:
    with trace(detail=detail) as t:
        program()
    assert [note for note in t.trace.notes if note.rule in ("capture.failed", "capture.busy")] == []
    return ranges(t.trace)


X = torch.randn(2, 8)


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU())


SMALL = {"module::::Sequential": 1, "module::0::Linear": 1, "module::1::ReLU": 1}


class Stubborn:
    """A configuration that has a value for each layer, and none for all."""

    hidden_size = 8

    @property
    def num_attention_heads(self) -> int:
        raise ValueError("each layer has its own")


def test_a_configuration_that_does_not_answer_names_the_modules_all_the_same() -> None:
    model = small()
    model.config = Stubborn()  # type: ignore[assignment]
    with trace(model) as t:
        model(X)
    assert ranges(t.trace) == SMALL
    (described,) = t.trace.meta.facts["models"]
    assert described["hidden_size"] == 8
    assert "num_attention_heads" not in described
    assert not [note for note in t.trace.notes if note.rule == "capture.failed"]


def test_a_model_that_cannot_be_described_is_named_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(model: nn.Module) -> None:
        raise LookupError("nothing is said")

    monkeypatch.setattr(capture, "describe_model", fail)
    model = small()
    with trace(model) as t:
        model(X)
    assert ranges(t.trace) == SMALL
    assert len(t.trace.table("root_calls")) == 1
    (note,) = [note for note in t.trace.notes if note.rule == "capture.failed"]
    assert "the description of a model failed: LookupError: nothing is said" in note.message


# Names


def test_every_module_of_a_root() -> None:
    model = small()
    assert ranges_of(lambda: model(X)) == SMALL


def test_ranges_lie_within_each_other_and_around_their_operators() -> None:
    model = small()
    with trace(detail="full") as t:
        model(X)
    events = t.trace.events
    at = {name: events[events["name"] == name].iloc[0] for name in (*SMALL, "aten::addmm")}
    root, linear, op = (at[n] for n in ("module::::Sequential", "module::0::Linear", "aten::addmm"))
    assert root.start_ns <= linear.start_ns <= op.start_ns
    assert op.start_ns + op.duration_ns <= linear.start_ns + linear.duration_ns
    assert linear.start_ns + linear.duration_ns <= root.start_ns + root.duration_ns


def test_blocks_alone_are_enough_for_the_default_detail() -> None:
    model = OwnModel()
    found = ranges_of(lambda: model(prompt()), detail="modules")
    assert set(found) == {
        "module::::OwnModel",
        "module::embedding::Embedding",
        *(f"module::layers.{i}::Block" for i in (0, 1)),
        *(f"module::layers.{i}.norm::LayerNorm" for i in (0, 1)),
        *(f"module::layers.{i}.attention::SelfAttention" for i in (0, 1)),
        *(f"module::layers.{i}.mlp::Sequential" for i in (0, 1)),
        "module::head::Linear",
    }


@pytest.mark.parametrize(
    ("name", "kept", "left_out"),
    [
        ("llama", "model.layers.0.self_attn", "model.layers.0.self_attn.q_proj"),
        ("gpt2", "transformer.h.1.attn", "transformer.h.1.attn.c_attn"),
        ("mixtral", "model.layers.0.mlp.gate", "model.layers.0.self_attn.o_proj"),
        ("qwen3_moe", "model.layers.0.self_attn.q_norm", "model.layers.0.self_attn.k_proj"),
    ],
)
def test_which_modules_are_blocks(name: str, kept: str, left_out: str) -> None:
    members = {member.path: member for member in walk(decoder(name))}
    assert is_block(members[kept])
    assert not is_block(members[left_out])


def test_a_module_beside_blocks_is_one() -> None:
    layer = nn.ModuleDict({"gate": nn.Linear(4, 2), "experts": nn.ModuleList([Block(4), Block(4)])})
    model = nn.ModuleList([nn.ModuleDict({"moe": layer}), nn.ModuleDict({"moe": layer})])
    members = {member.path: member for member in walk(model)}
    assert is_block(members["0.moe.gate"])
    assert not is_block(members["0.moe.experts.0.attention.qkv"])


def test_a_shared_module_has_one_name() -> None:
    linear = nn.Linear(8, 8)
    model = nn.Sequential(linear, nn.ReLU(), linear)
    assert ranges_of(lambda: model(X)) == {**SMALL, "module::0::Linear": 2}


def test_a_larger_root_gives_earlier_ranges_its_names() -> None:
    inner = small()
    outer = nn.ModuleDict({"inner": inner, "head": nn.Linear(8, 8)})

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = outer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.parts["head"](self.parts["inner"](x))
            return out

    model = Outer()
    with trace(detail="full") as t:
        inner(X)
        model(X)
        inner(X)
    assert ranges(t.trace) == {
        "module::::Outer": 1,
        "module::parts.inner::Sequential": 3,
        "module::parts.inner.0::Linear": 3,
        "module::parts.inner.1::ReLU": 3,
        "module::parts.head::Linear": 1,
    }
    assert list(t.trace.table("root_calls")["root"]) == ["parts.inner", "", "parts.inner"]
    assert set(t.trace.table("model_modules")["path"]) >= {"", "parts.inner.0", "parts.head"}


def test_an_earlier_root_of_the_same_class_is_not_confused_with_the_larger_one() -> None:
    inner = nn.Sequential(nn.Linear(8, 8))
    outer = nn.Sequential(inner)
    with trace(detail="full") as t:
        inner(X)
        outer(X)
    assert ranges(t.trace) == {
        "module::::Sequential": 1,
        "module::0::Sequential": 2,
        "module::0.0::Linear": 2,
    }


def test_a_layer_called_by_itself_keeps_its_range_inside_the_larger_model() -> None:
    """Inside the block a plain layer has no range of its own; the one it wrote before is named."""
    layer = nn.Linear(8, 8)
    model = nn.Sequential(nn.Sequential(nn.Sequential(layer, nn.Linear(8, 8))))
    with trace() as t:
        layer(X)
        model(X)
    assert ranges(t.trace)["module::0.0.0::Linear"] == 1


def test_a_plain_layer_deep_inside_a_known_model_is_no_root() -> None:
    """Its calls by themselves cost nothing; those of a block count."""
    block = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model = nn.Sequential(nn.Sequential(nn.Sequential(block)))
    with trace() as t:
        model(X)
        block[0](X)
        block(X)
    assert list(t.trace.table("root_calls")["root"]) == ["", "0.0.0"]


def test_a_second_model_is_named_after_its_class() -> None:
    first, second, third = small(), small(), OwnModel()
    found = ranges_of(lambda: (first(X), second(X), third(prompt())))
    assert found["module::::Sequential"] == 1
    assert found["module::Sequential_2::Sequential"] == 1
    assert found["module::Sequential_2.0::Linear"] == 1
    assert found["module::OwnModel.layers.0::Block"] == 1


def test_modules_that_a_model_makes_while_it_runs_are_found_afterwards() -> None:
    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not self.parts:
                self.parts.append(nn.Linear(8, 8))
            out: torch.Tensor = self.parts[0](x)
            return out

    model = Growing()
    found = ranges_of(lambda: [model(X) for _ in range(3)])
    assert found == {"module::::Growing": 3, "module::parts.0::Linear": 2}


def test_a_model_that_makes_modules_in_every_call_is_not_searched_forever() -> None:
    class Making(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = nn.Linear(8, 8)(x)
            return out

    model = nn.Sequential(Making())
    tree = ModuleTree()
    tree.add(model)
    for _ in range(100):
        tree.rescan(model)
    assert tree._roots[0].rescans == ModuleTree.MAX_RESCANS
    assert ranges_of(lambda: [model(X) for _ in range(20)]) == {
        "module::::Sequential": 20,
        "module::0::Making": 20,
    }


def test_an_identity_that_is_given_again_gets_no_old_name() -> None:
    tree = ModuleTree()
    model: nn.Module | None = nn.Sequential(nn.Linear(2, 2))
    assert model is not None
    tree.add(model)
    assert len(tree.ranges) == 2
    del model
    gc.collect()
    assert tree.ranges == {}
    assert list(tree.table()["path"]) == ["", "0"]


# Wrappers


def test_wrappers_leave_names_alone() -> None:
    model = small()
    compiled = torch.compile(model, backend="eager")
    parallel = nn.DataParallel(model)
    assert unwrap(cast(nn.Module, compiled)) is model
    assert unwrap(parallel) is model
    assert unwrap(nn.DataParallel(cast(nn.Module, compiled))) is model
    assert unwrap(model) is model
    assert ranges_of(lambda: parallel(X)) == SMALL


def test_a_model_named_module_is_no_wrapper() -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = small()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.module(x)
            return out

    holder = Holder()
    assert set(ranges_of(lambda: holder(X))) == {
        "module::::Holder",
        "module::module::Sequential",
        "module::module.0::Linear",
        "module::module.1::ReLU",
    }


def test_a_distributed_model_keeps_its_names(tmp_path: Any) -> None:
    import torch.distributed as distributed
    from torch.nn.parallel import DistributedDataParallel

    store = f"file://{tmp_path / 'store'}"
    distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        model = DistributedDataParallel(small())
        with trace(detail="full") as t:
            model(X).sum().backward()
        assert ranges(t.trace) == SMALL
        assert t.trace.meta.rank == 0
        assert t.trace.meta.world_size == 1
    finally:
        distributed.destroy_process_group()


# torch.compile


class Own(nn.Module):
    """A model whose code is not torch's: the compiler leaves calls of torch's own containers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(self.first(x))
        return out


def compilations() -> tuple[int, int]:
    graphs = counters["stats"]["unique_graphs"]
    return graphs, sum(counters["graph_break"].values())


@pytest.fixture
def fresh_compiler() -> Generator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def _compiled_module(model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    return torch.compile(model, backend="eager", fullgraph=True)


def _compiled_function(model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    return torch.compile(lambda x: model(x) + 1, backend="eager", fullgraph=True)


def _compiled_in_place(model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    model.compile(backend="eager", fullgraph=True)
    return model


def _compiled_call(model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    return torch.compile(model.__call__, backend="eager", fullgraph=True)


def _compiled_forward(model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    model.forward = torch.compile(model.forward, backend="eager", fullgraph=True)
    return model


COMPILED = [
    _compiled_module,
    _compiled_function,
    _compiled_in_place,
    _compiled_call,
    _compiled_forward,
]


@pytest.mark.parametrize("make", COMPILED, ids=lambda make: make.__name__)
@pytest.mark.parametrize("detail", ["modules", "light"])
@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_before_the_trace_nothing_is_compiled_again(
    make: Callable[[nn.Module], Callable[[torch.Tensor], torch.Tensor]], detail: Any
) -> None:
    model = Own()
    compiled = make(model)
    expected = compiled(X)
    for _ in range(2):
        with trace(detail=detail):
            for _ in range(4):
                assert torch.equal(compiled(X), expected)
        assert torch.equal(compiled(X), expected)
    assert compilations() == (1, 0)


@pytest.mark.parametrize("make", COMPILED, ids=lambda make: make.__name__)
@pytest.mark.parametrize("detail", ["modules", "light"])
@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_inside_the_trace_it_is_one_graph_and_stays(
    make: Callable[[nn.Module], Callable[[torch.Tensor], torch.Tensor]], detail: Any
) -> None:
    model = Own()
    with trace(detail=detail):
        compiled = make(model)
        expected = compiled(X)
        for _ in range(4):
            assert torch.equal(compiled(X), expected)
    for _ in range(2):
        assert torch.equal(compiled(X), expected)
    with trace(detail=detail):
        assert torch.equal(compiled(X), expected)
    assert compilations() == (1, 0)


@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_model_is_one_root_call_without_ranges_inside() -> None:
    model = Own()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    compiled(X)
    with trace() as t:
        for _ in range(3):
            compiled(X)
    assert list(t.trace.table("root_calls")["type"]) == ["Own"] * 3
    assert ranges(t.trace) == {}
    assert "capture.modules_not_seen" in [note.rule for note in t.trace.notes]
    assert t.trace.meta.facts["compile_mode"] == "default"


@pytest.mark.usefixtures("fresh_compiler")
def test_layers_compiled_one_by_one_keep_their_ranges() -> None:
    model = OwnModel()
    for layer in model.layers:
        layer.compile(backend="eager", fullgraph=True)
    with torch.no_grad():
        found = ranges_of(lambda: model(prompt()), detail="modules")
    assert found["module::layers.0::Block"] == 1
    assert "module::layers.0.attention::SelfAttention" not in found
    assert sum(counters["graph_break"].values()) == 0


@pytest.mark.parametrize("detail", ["modules", "light"])
@pytest.mark.usefixtures("fresh_compiler")
def test_the_hook_is_not_compiled_where_torch_compiles_nothing(detail: Any) -> None:
    """The compiler skips calls of torch's own containers, and so it must skip ours of them."""
    model = small()
    model.compile(backend="eager")
    model(X)
    without = compilations()
    with trace(detail=detail):
        for _ in range(4):
            model(X)
    assert compilations() == without == (0, 0)


# Other tracers and transforms


def test_fx_jit_export_vmap_and_make_fx_see_the_model_as_without_us() -> None:
    from torch.func import functional_call, vmap
    from torch.fx import symbolic_trace
    from torch.fx.experimental.proxy_tensor import make_fx

    model = small()
    expected = model(X)
    targets = [node.target for node in symbolic_trace(model).graph.nodes]
    with trace():
        model(X)
        assert [node.target for node in symbolic_trace(model).graph.nodes] == targets
        assert torch.equal(symbolic_trace(model)(X), expected)
        assert torch.allclose(vmap(model)(X), expected)
        assert torch.equal(make_fx(model)(X)(X), expected)
        exported = torch.export.export(model, (X,))
        assert torch.equal(exported.module()(X), expected)
        assert torch.equal(functional_call(model, dict(model.named_parameters()), (X,)), expected)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_scripted_modules_are_leaves() -> None:
    jit: Any = torch.jit
    scripted = jit.script(small())
    traced = jit.trace(small(), X)
    found = ranges_of(lambda: (scripted(X), traced(X)))
    assert found == {"module::::Sequential": 1, "module::Sequential_2::Sequential": 1}
    with trace():
        inside = jit.trace(small(), X)
        assert inside(X).shape == X.shape


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_writes_its_ranges_again_in_the_backward_pass(reentrant: bool) -> None:
    model = small()
    x = X.clone().requires_grad_()

    def program() -> None:
        checkpoint(model, x, use_reentrant=reentrant).sum().backward()

    with trace(detail="full") as t:
        program()
    assert ranges(t.trace) == dict.fromkeys(SMALL, 2)
    assert len(t.trace.table("root_calls")) == 1


def test_threads_have_roots_of_their_own() -> None:
    models = [small() for _ in range(4)]
    barrier = threading.Barrier(4)

    def run(model: nn.Module) -> None:
        barrier.wait()
        for _ in range(5):
            model(X)

    def program() -> None:
        threads = [threading.Thread(target=run, args=(model,)) for model in models]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with trace() as t:
        program()
    assert len(t.trace.table("root_calls")) == 20
    assert sum(ranges(t.trace).values()) == 60


def test_naming_the_modules_of_a_root_is_the_recordings_own_cost() -> None:
    """Once a root, before its first call."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).eval()
    with trace() as t:
        for _ in range(3):
            model(torch.ones(1, 4))
    recorded = t.analysis.trace
    (own,) = recorded.rows("overhead")
    assert recorded.names[recorded.name_codes[own]] == "tracer::names of modules"
    first = recorded.rows("module")[0]
    assert recorded.end_ns[own] <= recorded.start_ns[first]


class Nested(nn.Module):
    """Calls itself until it is deep enough."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, depth: int = 3) -> torch.Tensor:
        y: torch.Tensor = self.layer(x) if depth == 1 else self(x, depth - 1)
        return y


@pytest.mark.parametrize("detail", ["modules", "full"])
def test_a_module_that_calls_itself_has_a_range_for_each_call(detail: Any) -> None:
    model = nn.Sequential(Nested())

    def program() -> None:
        for _ in range(2):
            model(X)

    assert ranges_of(program, detail) == {
        "module::::Sequential": 2,
        "module::0::Nested": 6,
        "module::0.layer::Linear": 2,
    }


def test_two_threads_may_be_in_one_module_at_once() -> None:
    both = threading.Barrier(2)

    class Met(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            both.wait(timeout=30)
            return x + 1

    model = nn.Sequential(Met(), nn.Linear(8, 8))

    def program() -> None:
        for _ in range(3):
            other = threading.Thread(target=model, args=(X,))
            other.start()
            model(X)
            other.join()

    counts = ranges_of(program, "modules")
    assert (counts["module::0::Met"], counts["module::1::Linear"]) == (6, 6)


def test_a_block_called_beside_a_model_that_runs_is_a_root() -> None:
    """In a thread that was there before the model was called."""
    called, both = threading.Event(), threading.Barrier(2)

    class Waits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(nn.Linear(8, 8))

        def forward(self, x: torch.Tensor, wait: bool = True) -> torch.Tensor:
            if wait:
                both.wait(timeout=30)
                assert called.wait(timeout=30)
            out: torch.Tensor = self.block(x)
            return out

    model = Waits()

    def beside() -> None:
        both.wait(timeout=30)
        model.block(X)
        called.set()

    with trace() as t:
        model(X, wait=False)
        other = threading.Thread(target=beside)
        other.start()
        model(X)
        other.join()
    assert sorted(t.trace.table("root_calls")["root"]) == ["", "", "block"]
    assert ranges(t.trace)["module::block::Sequential"] == 3


def test_another_model_in_a_thread_that_a_model_starts_is_a_root() -> None:
    class Starts(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            other = threading.Thread(target=small(), args=(x,))
            other.start()
            other.join()
            return x + 1

    model = nn.Sequential(Starts(), nn.Linear(8, 8))
    with trace() as t:
        model(X)
    assert sorted(t.trace.table("root_calls")["root"]) == ["", "Sequential_2"]
    assert ranges(t.trace)["module::Sequential_2.0::Linear"] == 1


@pytest.mark.parametrize("detail", ["modules", "full"])
def test_an_exception_closes_the_ranges(detail: Any) -> None:
    class Raising(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise LookupError("mine")

    model, good = nn.Sequential(Raising()), small()
    errors = []
    with trace(detail=detail) as t:
        for _ in range(2):
            try:
                model(X)
            except LookupError as caught:
                errors.append(str(caught))
        good(X)
    assert errors == ["mine", "mine"]
    assert ranges(t.trace)["module::0::Raising"] == 2
    assert list(t.trace.table("root_calls")["root"]) == ["", "", "Sequential_2"]


def test_a_class_with_a_call_of_its_own() -> None:
    class Calling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)
            self.called = 0

        def __call__(self, x: torch.Tensor) -> Any:
            self.called += 1
            return super().__call__(x)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.inner(x)
            return out

    model = Calling()
    for detail in ("full", "light"):
        with trace(detail=detail) as t:
            for _ in range(4):
                model(X)
        assert len(t.trace.table("root_calls")) == 4
    assert model.called == 8
    assert Calling.__call__.__qualname__.endswith("Calling.__call__")


def test_hooks_of_the_program_run_once() -> None:
    model, calls = small(), []
    model.register_forward_hook(lambda *args: calls.append("after"))
    model[0].register_forward_pre_hook(lambda *args: calls.append("before"))  # type: ignore[index]
    with trace():
        model(X)
    assert calls == ["before", "after"]


# The patch


def test_somebody_elses_patch_survives_and_ours_only_passes_calls_on() -> None:
    original = nn.Module.__call__
    seen = []

    def theirs(self: nn.Module, *args: Any) -> Any:
        seen.append(type(self).__name__)
        return before(self, *args)

    try:
        with trace():
            before = nn.Module.__call__
            nn.Module.__call__ = theirs  # type: ignore[method-assign]
            small()(X)
        assert nn.Module.__call__ is theirs
        small()(X)
        with trace() as t:
            small()(X)
        assert len(t.trace.table("root_calls")) == 1
        assert nn.Module.__call__ is theirs
        assert seen == ["Sequential", "Linear", "ReLU"] * 3
    finally:
        nn.Module.__call__ = before  # type: ignore[method-assign]
    with trace() as t:
        small()(X)
    assert len(t.trace.table("root_calls")) == 1
    assert nn.Module.__call__ is original


def test_a_profiler_with_python_frames_sees_our_patch_as_a_module_call() -> None:
    """It crashes when the function at `nn.Module.__call__` has no local `self`."""
    model = small()
    frames = profile(activities=[ProfilerActivity.CPU], with_stack=True)
    with trace(detail="light"), frames as theirs:
        model(X)
    assert len(theirs.events()) > 0
    assert module_ranges._call.__code__.co_varnames[0] == "self"


def test_light_leaves_all_but_the_roots_alone_after_two_calls() -> None:
    model = small()
    with trace(detail="light") as t:
        model(X)
        assert nn.Module.__call__ is module_ranges._call
        model(X)
        assert nn.Module.__call__ is not module_ranges._call
        assert "__call__" in vars(nn.Sequential)
        for _ in range(3):
            model(X)
        OwnModel()(prompt())  # a class that was not a root before the patch moved
    assert "__call__" not in vars(nn.Sequential)
    assert len(t.trace.table("root_calls")) >= 5


def test_a_waiting_trace_of_announced_steps_leaves_every_class_alone() -> None:
    """Calls tell nothing then, and what the waiting steps take is what they take without us."""
    model, patched = small(), []
    with trace(schedule=torch.profiler.schedule(wait=5, warmup=1, active=2)) as t:
        for _ in range(8):
            with t.step("work"):
                patched.append(_is_patched(nn.Sequential))
                model(X)
    assert patched == [True, True, False, False, False, False, True, True]
    assert t.trace.rows("module").size > 0


def test_a_waiting_trace_without_announced_steps_sees_the_calls_of_roots() -> None:
    model, patched = small(), []
    with trace(calibrate=True) as t:
        for _ in range(12):
            patched.append(_is_patched(nn.Sequential))
            model(X)
    assert all(patched)
    assert t.trace.rows("module").size > 0


def _is_patched(kind: type[nn.Module]) -> bool:
    return nn.Module.__call__ is module_ranges._call or "__call__" in vars(kind)


@pytest.mark.parametrize("detail", ["modules", "full"])
def test_without_the_private_range_the_public_one_serves(
    monkeypatch: pytest.MonkeyPatch, detail: Any
) -> None:
    monkeypatch.setattr(torch_private, "_fast_range", lambda: None)
    torch_private.range_maker.cache_clear()
    torch_private._leaves_without_arguments.cache_clear()
    model = small()
    try:
        assert torch_private.range_maker() is torch.profiler.record_function
        found = ranges_of(lambda: (model(X), model(X)), detail)
        assert found == dict.fromkeys(SMALL, 2)
        fallbacks = {i.name: i.found for i in torch_private.private_interfaces()}
        assert not fallbacks["torch._C._profiler._RecordFunctionFast"]
    finally:
        torch_private.range_maker.cache_clear()
        torch_private._leaves_without_arguments.cache_clear()


def test_private_interfaces_are_listed_with_their_fallbacks() -> None:
    for interface in torch_private.private_interfaces():
        assert interface.name.startswith("torch.")
        assert interface.fallback
        assert interface.found


def calls_in(program: Callable[[], object]) -> list[str]:
    """The Python and C functions that a program calls."""
    called: list[str] = []

    def note(frame: Any, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            called.append(frame.f_code.co_name if event == "call" else argument.__name__)

    sys.setprofile(note)
    try:
        program()
    finally:
        sys.setprofile(None)
    return called


def test_the_hook_calls_hardly_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cost in the hot path, counted and not timed."""
    model = small()
    plain = calls_in(lambda: model(X))
    monkeypatch.setattr(nn.Module, "__call__", module_ranges._call)
    monkeypatch.setattr(module_ranges, "_is_plain", True)  # as a trace finds it
    inactive = calls_in(lambda: model(X))
    monkeypatch.undo()
    # The question to the compiler, a module: ours takes the place of torch's own.
    assert len(inactive) - len(plain) == 3
    with trace(detail="full"):
        model(X)
        module_ranges._local.inside = True  # as within a root
        active = calls_in(lambda: model(X))
        module_ranges._local.inside = False
    ours = ["_call", "is_dynamo_compiling", "id"]
    assert [name for name in active if name in ours] == ours * 3
    assert "_wrapped_call_impl" not in active
    # Each would be a frame more of the recording.
    assert not {"__enter__", "append"} & set(active)


@pytest.mark.parametrize("detail", ["modules", "full"])
def test_calls_of_modules_without_ranges_are_not_zero(detail: Any) -> None:
    model = decoder("llama")
    with trace(detail=detail) as t, torch.no_grad():
        for _ in range(3):
            model(prompt())
    modules = t.report.json()["modules"]
    calls = {module["path"]: module["calls"] for module in modules}
    assert (calls[""], calls["model.layers.0.mlp"], calls["lm_head"]) == (3, 3, 3)
    assert calls["model.layers.0.mlp.up_proj"] == (3 if detail == "full" else None)
    assert calls["model.layers"] is None  # a list, which nobody calls
    index = build_modules(t.analysis)
    opened = frozenset(("", "model", "model.layers", "model.layers.*", "model.layers.*.mlp"))
    rows = shown_rows(index, opened, frozenset())
    table = modules_table(Look(), index, rows)
    shown = {row.node.path: at for at, row in enumerate(rows) if not row.own}
    numbers = {column.key: column.cells for column in table.columns}
    at = shown["model.layers.*.mlp.up_proj"]
    assert numbers["calls"][at] == ("6" if detail == "full" else "-")
    assert (numbers["device"][at] == "-") == (detail == "modules")


def test_an_expert_that_was_not_chosen_has_no_call() -> None:
    class Chooses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(Block(16) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.experts[1](x)  # type: ignore[no-any-return]

    model = Chooses()
    with trace() as t, torch.no_grad():
        model(torch.ones(1, 4, 16))
    calls = {module["path"]: module["calls"] for module in t.report.json()["modules"]}
    assert [calls[f"experts.{n}"] for n in range(3)] == [0, 1, 0]


def test_a_compiled_model_has_the_calls_of_its_root() -> None:
    model = OwnModel().eval()
    compiled = torch.compile(model, backend="eager")
    with trace() as t, torch.no_grad():
        for _ in range(4):
            compiled(prompt())
    calls = {module["path"]: module["calls"] for module in t.report.json()["modules"]}
    assert calls[""] == 4
