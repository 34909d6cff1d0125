"""The torch integration on a stand-in for torch, everywhere."""

import sys
import threading
import types

import pytest
from support import fake_torch
from support.torch_shape import paths, snapshot

import gpusense
from gpusense.integrations import torch as integration
from gpusense.integrations.torch import _modules


@pytest.fixture(params=["own thread", "caller's thread"])
def torch(request, monkeypatch, tracer, way):
    """The stand-in, whose autograd has a thread of its own (as with CUDA), or uses the caller's (as on a CPU)."""
    stand_in = fake_torch.make(own_thread=request.param == "own thread")
    monkeypatch.setitem(sys.modules, "torch", stand_in)
    return stand_in


def model_of(torch):
    nn = torch.nn
    return nn.Sequential(nn.Linear(), nn.Sequential(nn.Linear(), nn.Linear()))


def step(torch, model):
    with gpusense.trace("step"):
        output = model(fake_torch.Tensor())
        fake_torch.operation(output).backward()


def test_modules_forward_and_backward(torch, tracer):
    assert integration.instrument(min_us=0) is True
    step(torch, model_of(torch))
    forward = ["step", "step / Sequential", "step / Sequential / 0", "step / Sequential / 1"]
    backward = [
        "step / backward",
        "step / backward / Sequential",
        "step / backward / Sequential / 1",
        "step / backward / Sequential / 0",
    ]
    assert paths(tracer) == forward + backward
    blocks = {block.block_id: block for block in tracer.session().blocks}
    for block in blocks.values():  # every block lies in its parent
        if block.parent_id is not None:
            assert blocks[block.parent_id].start_ns <= block.start_ns <= block.end_ns <= blocks[block.parent_id].end_ns
    assert integration.statistics() == integration.Statistics(roots=1)


def test_hooks_on_nodes_are_used_again_but_those_of_graphs_that_are_kept(torch, tracer):
    integration.instrument(min_us=0)
    model = model_of(torch)
    back = [f"backward / Sequential{inner}" for inner in ("", " / 1", " / 0")]

    def loss():
        return fake_torch.operation(model(fake_torch.Tensor()))

    kept = loss()
    torch.autograd.backward(kept, None, True)
    for _ in range(6):
        loss()  # a graph that is never run
    loss().backward()
    kept.backward()  # by now its modules have been called again
    losses = [loss() for _ in range(7)]
    fake_torch.operation(*losses).backward()
    found = [path for path in paths(tracer) if path != "backward" and path.startswith("backward")]
    assert found == back * 10
    (root, *_) = (place for place in integration._installed.now.modules._places.values() if place and place.level == 1)
    assert len(root.hooks) == 1  # of four one came back, and was taken again and again
    assert root.made == 4
    for _ in range(3):
        loss().backward()
    assert len(root.hooks) == 1
    assert integration.statistics() == integration.Statistics(roots=1)


def test_a_torch_whose_nodes_take_no_hooks_from_a_tensor(torch, tracer, monkeypatch):
    monkeypatch.delattr(fake_torch.Node, "_register_hook_dict")
    integration.instrument(min_us=0)
    step(torch, model_of(torch))
    assert paths(tracer)[-2:] == ["step / backward / Sequential / 1", "step / backward / Sequential / 0"]
    assert integration.statistics() == integration.Statistics(roots=1)


def test_a_call_is_as_deep_as_without_a_block(torch, tracer):
    """Modules may nest as deeply as without us: of a model, its parts and what has no block alike."""

    def depths():
        found.clear()
        for _ in range(3):
            model(fake_torch.Tensor())
        return list(found)

    model, found = model_of(torch), []
    for module in (model, *model._modules.values()):
        own = module.forward

        def forward(*args, own=own):
            frame, depth = sys._getframe(), 0
            while frame is not None:
                frame, depth = frame.f_back, depth + 1
            found.append(depth)
            return own(*args)

        module.forward = forward
    without = depths()
    for depth in (1, 2):
        integration.instrument(min_us=0, depth=depth)
        assert depths() == without
        integration.uninstrument()
    assert len(without) > 3


@pytest.mark.parametrize("known", [True, False])
def test_calls_of_modules_without_a_block(torch, tracer, known):
    """Whatever ``nn.Module.__call__`` is: torch's own as it is known, or another, which is called."""
    called = []
    if not known:
        own = torch.nn.Module.__call__
        torch.nn.Module.__call__ = lambda self, *args, **kwargs: called.append(self) or own(self, *args, **kwargs)
    integration.instrument(min_us=0, depth=1, backward=False)
    model = model_of(torch)
    model(fake_torch.Tensor())
    compiled = model._modules["0"]
    compiled._compiled_call_impl = lambda x, y=0: (x, y)
    assert compiled(1, y=2) == (1, 2)
    compiled._compiled_call_impl = None
    compiled.forward = lambda *args, **kwargs: (args, kwargs)
    assert compiled(1, 2, y=3) == ((1, 2), {"y": 3})
    assert paths(tracer) == ["Sequential"]
    assert len(called) == (0 if known else 7)
    assert _modules._is_known(torch.nn.Module.__call__.__wrapped__) is known


def test_each_node_of_a_backward_pass_runs_in_its_module(torch, tracer):
    """Also the last child's, whose output is its parent's as well, so that both blocks begin at one node."""
    integration.instrument(min_us=0)
    ran = []
    torch.autograd.Variable._execution_engine.observe = lambda node: ran.append(tracer.current_block().path[1:])
    with gpusense.trace("step"):
        model_of(torch)(fake_torch.Tensor()).backward()
    last, first = ("backward", "Sequential", "1"), ("backward", "Sequential", "0")
    assert ran == [last] * 4 + [first] * 2


def test_backward_blocks_are_of_the_thread_that_runs_the_nodes(torch, tracer):
    integration.instrument(min_us=0)
    step(torch, model_of(torch))
    step(torch, model_of(torch))
    engine = torch.autograd.Variable._execution_engine
    expected = engine.thread.ident if engine.thread else threading.get_ident()
    modules = [block for block in tracer.session().blocks if "backward" in block.path[:-1]]
    assert {block.thread for block in modules} == {expected}
    assert len(modules) == 6


def test_depth(torch, tracer):
    integration.instrument(min_us=0, depth=3, backward=False)
    model_of(torch)(fake_torch.Tensor())
    assert paths(tracer)[-2:] == ["Sequential / 1 / 1.0", "Sequential / 1 / 1.1"]
    tracer.reset()
    integration.uninstrument()
    integration.instrument(min_us=0, depth=1, backward=False)
    model_of(torch)(fake_torch.Tensor())
    assert paths(tracer) == ["Sequential"]


def test_lists_of_modules_count_as_their_owner(torch, tracer):
    class Net(torch.nn.Module):
        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    integration.instrument(min_us=0)
    Net(layers=torch.nn.ModuleList(torch.nn.Linear(), torch.nn.Linear()))(fake_torch.Tensor())
    assert paths(tracer) == ["Net", "Net / layers.0", "Net / layers.1"]


def test_wrappers_take_the_name_of_what_they_wrap(torch, tracer):
    class DistributedDataParallel(torch.nn.Module):
        def forward(self, x):
            return self.module(x)

    integration.instrument(min_us=0)
    inner = torch.nn.Sequential(torch.nn.Linear())
    DistributedDataParallel(module=inner)(fake_torch.Tensor())
    assert paths(tracer) == ["Sequential", "Sequential / 0"]
    assert tracer.session().blocks[-1].attributes["torch.wrapper"] == "DistributedDataParallel"


def test_a_module_of_a_forward_pass_is_no_model_of_its_own(torch, tracer):
    class Net(torch.nn.Module):
        def forward(self, x):
            return torch.nn.Linear()(x)

    integration.instrument(min_us=0)
    Net()(fake_torch.Tensor())
    assert paths(tracer) == ["Net"]
    assert integration.statistics().roots == 1


def test_forgotten_modules_leave_nothing_behind(torch, tracer):
    integration.instrument(min_us=0, backward=False)
    for _ in range(50):
        model_of(torch)(fake_torch.Tensor())
    import gc

    gc.collect()
    assert len(integration._installed.now.modules._places) == 0


def test_modules_that_are_over_at_once_lose_their_block(torch, tracer):
    integration.instrument(min_us=1e6, backward=False)
    model = model_of(torch)
    for _ in range(20):
        model(fake_torch.Tensor())
    counts = {path: paths(tracer).count(path) for path in set(paths(tracer))}
    assert counts == {"Sequential": 20, "Sequential / 0": 10, "Sequential / 1": 10}
    assert integration.statistics().too_short == ("0", "1")


def test_exceptions_pass_and_are_named(torch, tracer):
    class Bad(torch.nn.Module):
        def forward(self, x):
            raise KeyboardInterrupt

    integration.instrument(min_us=0)
    model = torch.nn.Sequential(torch.nn.Linear(), Bad())
    with pytest.raises(KeyboardInterrupt):
        model(fake_torch.Tensor())
    model_of(torch)(fake_torch.Tensor())
    errors = {" / ".join(block.path): block.error for block in tracer.session().blocks}
    assert errors["Sequential / 1"] is None  # of the second model, whose blocks are not inside those that failed
    assert paths(tracer).count("Sequential") == 2
    assert [block.error for block in tracer.session().blocks if block.error] == ["KeyboardInterrupt"] * 2


def test_a_backward_pass_that_fails_leaves_no_block_open(torch, tracer):
    integration.instrument(min_us=0)
    output = model_of(torch)(fake_torch.Tensor())

    def fail(*_):
        raise ZeroDivisionError

    output.grad_fn.prehooks.append(fail)
    with pytest.raises(ZeroDivisionError):
        output.backward()
    assert tracer.current_block() is None
    step(torch, model_of(torch))  # closes on autograd's thread what the failure left open there
    assert paths(tracer).count("backward / Sequential / 1") == 1
    assert paths(tracer)[-1] == "step / backward / Sequential / 0"


def test_ranges_optimizers_and_loaders(torch, tracer):
    integration.instrument()
    record = torch.autograd.profiler.record_function
    for name in ("mine", "Optimizer.step#AdamW.step", "Optimizer.zero_grad#SGD.zero_grad"):
        with record(name):
            pass
    with pytest.raises(StopIteration), record("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
        raise StopIteration
    assert torch.cuda.nvtx.range_push("outer") == 0
    assert torch.cuda.nvtx.range_push("inner") == 1
    torch.cuda.nvtx.range_pop()
    torch.cuda.nvtx.range_pop()
    assert paths(tracer) == ["mine", "AdamW.step", "SGD.zero_grad", "DataLoader", "outer", "outer / inner"]


def test_a_wait_for_a_loader_knows_its_workers_and_the_number_of_the_batch(torch, tracer):
    class Iterator:
        _num_workers = 4
        _num_yielded = 7

        def __next__(self):
            with torch.autograd.profiler.record_function(
                "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
            ):
                return 1

    def mine():
        self = "no loader"
        with torch.autograd.profiler.record_function("DataLoader"):
            return self

    integration.instrument()
    assert next(Iterator()) == 1
    mine()
    known = {"torch.loader.workers": 4, "torch.loader.batch": 7}
    assert [one.attributes for one in tracer.session().blocks] == [known, None]


def test_compiled_functions(torch, tracer):
    integration.instrument()

    @torch.compile()
    def double(x):
        """Twice."""
        return x * 2

    assert double(4) == 8
    assert torch.compile(lambda x: x)(3) == 3
    assert paths(tracer)[0].endswith("double")
    torch.compiler.is_compiling = lambda: True
    integration.uninstrument()
    assert double(5) == 10
    assert len(paths(tracer)) == 2


def test_memory_on_request(torch, tracer):
    integration.instrument(memory=True)

    class Net(torch.nn.Module):
        def forward(self, x):
            torch.cuda.stats["allocated_bytes.all.current"] += 24
            return x

    Net()(fake_torch.Tensor())
    attributes = tracer.session().blocks[0].attributes
    assert attributes == {
        "torch.module": "Net",
        "torch.memory.allocated_bytes": 1024,
        "torch.memory.allocated_change_bytes": 24,
        "torch.memory.reserved_bytes": 4096,
        "torch.memory.peak_bytes": 3000,
    }
    torch.cuda.is_initialized = lambda: False
    Net()(fake_torch.Tensor())
    assert tracer.session().blocks[1].attributes == {"torch.module": "Net"}


def test_an_explicit_profiler_is_left_alone(torch, tracer):
    integration.instrument(min_us=0)
    torch.profiling.on = True
    step(torch, model_of(torch))
    with torch.autograd.profiler.record_function("mine"):
        pass
    assert paths(tracer) == ["step"]
    torch.profiling.on = False
    step(torch, model_of(torch))
    assert "step / backward / Sequential" in paths(tracer)


def test_off_means_nothing_is_left(torch, tracer):
    before = snapshot(torch)
    assert integration.instrument() is True
    assert integration.instrument() is True
    assert snapshot(torch) != before
    integration.uninstrument()
    integration.uninstrument()
    assert snapshot(torch) == before


def test_nothing_is_hooked_where_nothing_is_recorded(torch, monkeypatch, tracer):
    before = snapshot(torch)
    monkeypatch.setattr(gpusense, "_active", gpusense.get_tracer())
    gpusense.disable()
    refused = integration.instrument()
    assert not refused
    assert "disabled" in refused.reason
    assert snapshot(torch) == before


def test_a_part_that_fails_ends_and_the_program_does_not_notice(torch, tracer, monkeypatch, caplog):
    from gpusense._runtime import log

    monkeypatch.setattr(log, "_said", set())
    integration.instrument(min_us=0)
    model = model_of(torch)
    model(fake_torch.Tensor())
    torch.autograd.Variable._execution_engine.queue_callback = None
    fake_torch.operation(model(fake_torch.Tensor())).backward()
    assert "'NoneType' object is not callable" in integration.statistics().errors[0]
    assert len(integration.statistics().errors) == 1
    assert "switched off" in caplog.text
    step(torch, model)
    assert paths(tracer)[-1] == "step / Sequential / 1"
    assert tracer.current_block() is None

    def broken(*_):
        raise RuntimeError("no")

    monkeypatch.setattr(type(gpusense.get_tracer()), "open_scope", broken)
    assert model(fake_torch.Tensor()) is not None
    with torch.autograd.profiler.record_function("mine"):
        pass
    assert len(integration.statistics().errors) == 3


def test_a_poll_waits_for_the_import_to_be_over(tracer, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert integration.when_imported() is False
    stand_in = fake_torch.make(own_thread=False)
    stand_in.__spec__._initializing = True
    monkeypatch.setitem(sys.modules, "torch", stand_in)
    assert integration.when_imported() is False
    stand_in.__spec__._initializing = False
    assert integration.when_imported() is True
    assert integration.statistics() == integration.Statistics()
    with stand_in.autograd.profiler.record_function("mine"):
        pass
    assert paths(tracer) == ["mine"]


def test_another_tool_that_wrapped_later_stays(torch, tracer):
    integration.instrument()
    ours = torch.compile

    def theirs(*args, **kwargs):
        return ours(*args, **kwargs)

    torch.compile = theirs
    integration.uninstrument()
    assert torch.compile is theirs
    assert torch.compile(lambda x: x)(2) == 2


def test_without_torch_it_says_so(tracer, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    refused = integration.instrument()
    assert not refused
    assert "torch cannot be imported" in refused.reason


def test_outputs_that_are_long_hold_themselves_or_refuse_are_looked_at_in_part(torch, tracer):
    class Refusing(fake_torch.Tensor):
        @property
        def grad_fn(self):
            raise RuntimeError("a view of what was written to")

        @grad_fn.setter
        def grad_fn(self, value):
            pass

    class Net(torch.nn.Module):
        def forward(self, x):
            cycle = [1]
            cycle.append(cycle)
            return [Refusing(), cycle, x]

    class Counted(list):
        read = 0

        def __iter__(self):
            for item in super().__iter__():
                self.read += 1
                yield item

    integration.instrument(min_us=0)
    many = Counted(range(100_000))
    Net()(many)
    torch.nn.Sequential()(many)
    assert many.read < 1000
    assert integration.statistics() == integration.Statistics(roots=2)


def test_a_last_wait_for_data_is_no_error(torch, tracer):
    integration.instrument()
    with pytest.raises(StopIteration), torch.autograd.profiler.record_function("enumerate(DataLoader)#x.__next__"):
        raise StopIteration
    with pytest.raises(OSError, match="gone"), torch.autograd.profiler.record_function("enumerate(DataLoader)#x"):
        raise OSError("gone")
    assert [(block.name, block.error) for block in tracer.session().blocks] == [
        ("DataLoader", None),
        ("DataLoader", "OSError"),
    ]


def test_compiled_models_and_sharded_classes(torch, tracer):
    integration.instrument(min_us=0)
    compiled = torch.nn.Sequential()
    compiled._call_impl = types.MethodType(lambda self, x: x, compiled)
    compiled._call_impl.__func__.__name__ = "_call_impl"
    torch.compile(compiled._call_impl)(1)  # what Module.compile() does: the module has its block already
    assert paths(tracer) == []
    model = torch.nn.Sequential(torch.nn.Linear())
    mixed_in = type("FSDPModule", (), {})
    model._modules["0"].__class__ = type("FSDPLinear", (mixed_in, torch.nn.Linear), {})
    model(fake_torch.Tensor())
    assert [block.attributes for block in tracer.session().blocks] == [
        {"torch.module": "Linear"},
        {"torch.module": "Sequential"},
    ]


def test_hooks_do_nothing_while_compiled_autograd_looks_at_them(torch, tracer, monkeypatch):
    compiled = types.ModuleType("torch._dynamo.compiled_autograd")
    compiled.compiled_autograd_enabled = False
    monkeypatch.setitem(sys.modules, compiled.__name__, compiled)
    torch.compiler.is_compiling = lambda: compiled.compiled_autograd_enabled
    integration.instrument(min_us=0)
    output = model_of(torch)(fake_torch.Tensor())
    compiled.compiled_autograd_enabled = True
    fake_torch.operation(output).backward()
    assert paths(tracer)[-1] == "backward"
