"""The torch integration on the real torch, where it is installed (CI does without)."""

import collections
import copy
import gc
import io
import pickle
import re
import threading
import warnings
import weakref

import pytest
from support.torch_shape import paths, snapshot

import gpusense
from gpusense.integrations import torch as integration
from gpusense.integrations.torch import _backward


@pytest.fixture
def real(tracer, way):
    return pytest.importorskip("torch")


def network(torch):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = torch.nn.ModuleList([torch.nn.Linear(8, 8) for _ in range(2)])
            self.head = torch.nn.Linear(8, 2)

        def forward(self, x):
            for layer in self.body:
                x = x + layer(x).relu()
            return self.head(x)

    return Net()


def test_training_step(real, tracer):
    torch = real
    before = snapshot(torch)
    model = network(torch)
    optimizer = torch.optim.AdamW(model.parameters())
    assert integration.instrument(min_us=0) is True
    data = torch.utils.data.DataLoader(torch.randn(4, 8), batch_size=4)
    with gpusense.trace("step"):
        for batch in data:
            loss = model(batch).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert paths(tracer) == [
        "step",
        "step / DataLoader",
        "step / Net",
        "step / Net / body.0",
        "step / Net / body.1",
        "step / Net / head",
        "step / AdamW.zero_grad",
        "step / backward",
        "step / backward / Net",
        "step / backward / Net / head",
        "step / backward / Net / body.1",
        "step / backward / Net / body.0",
        "step / AdamW.step",
        "step / DataLoader",
    ]
    assert integration.statistics().errors == ()
    integration.uninstrument()
    assert snapshot(torch) == before
    assert not any(vars(module)["_forward_hooks"] for module in model.modules())


def test_results_are_the_same(real, tracer):
    torch = real
    results = []
    for on in (False, True):
        torch.manual_seed(3)
        model = network(torch)
        if on:
            integration.instrument(min_us=0)
        loss = model(torch.ones(4, 8)).pow(2).mean()
        loss.backward()
        results.append([loss.item(), *(parameter.grad.sum().item() for parameter in model.parameters())])
    assert results[0] == results[1]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_models_are_copied_and_pickled_as_before(real, tracer):
    torch = real
    integration.instrument(min_us=0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    model(torch.ones(1, 2))
    text = pickle.dumps(model)
    assert b"gpusense" not in text
    copy.deepcopy(model)(torch.ones(1, 2))
    torch.jit.script(model)(torch.ones(1, 2))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_models_have_no_graph_break_and_no_warning(real, tracer):
    torch = real
    integration.instrument(min_us=0)
    model = network(torch)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        compiled(torch.ones(4, 8)).sum().backward()
        compiled(torch.ones(4, 8))

    @torch.compile(backend="eager", fullgraph=True)
    def head(x):
        return model.head(x) * 2

    head(torch.ones(4, 8))
    found = paths(tracer)
    assert found[:3] == ["Net", "backward", "backward / Net"]
    assert found[3] == "Net"
    assert found[4].endswith("head")
    assert len(found) == 5
    integration.uninstrument()
    assert compiled(torch.ones(4, 8)).shape == (4, 2)


def test_checkpointing(real, tracer):
    torch = real
    from torch.utils.checkpoint import checkpoint

    integration.instrument(min_us=0, depth=3)
    layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    for reentrant in (False, True):
        x = torch.ones(2, 4, requires_grad=True)
        checkpoint(layer, x, use_reentrant=reentrant).sum().backward()
    assert tracer.current_block() is None
    assert integration.statistics().errors == ()
    assert "backward / Sequential" in paths(tracer)


def test_second_pass_over_one_graph(real, tracer):
    torch = real
    integration.instrument(min_us=0)
    loss = network(torch)(torch.ones(4, 8)).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert paths(tracer).count("backward / Net / head") == 2


def test_hooks_are_used_again_whatever_becomes_of_a_graph(real, tracer):
    torch = real
    integration.instrument(min_us=0)
    model = network(torch)
    back = [f"backward / Net{inner}" for inner in ("", " / head", " / body.1", " / body.0")]
    kept = model(torch.ones(4, 8)).sum()
    kept.backward(retain_graph=True)
    for _ in range(6):
        model(torch.ones(4, 8))  # a graph that is never run
    model(torch.ones(4, 8)).sum().backward()
    kept.backward()  # by now its modules have been called again
    losses = [model(torch.ones(4, 8)).sum() for _ in range(7)]
    sum(losses).backward()
    found = [path for path in paths(tracer) if path.startswith("backward / ")]
    assert found[:12] == back * 3
    assert collections.Counter(found[12:]) == dict.fromkeys(back, 7)
    (places, *_) = (
        place for place in integration._installed.now.modules._places.values() if place and place.level == 1
    )
    assert len(places.hooks) <= places.made == _backward._MAX_HOOKS
    assert integration.statistics().errors == ()


def test_a_hook_that_comes_back_holds_nothing_that_is_large(real, tracer):
    torch = real
    integration.instrument(min_us=0)
    model, seen = network(torch), []
    for _ in range(3):
        loss = model(torch.ones(4, 8)).sum()
        seen.append(weakref.ref(loss.grad_fn.next_functions[0][0].metadata.setdefault("mark", type("Mark", (), {})())))
        loss.backward()
    del loss
    gc.collect()
    assert [ref() for ref in seen] == [None] * 3


def test_threads_that_use_one_model_share_its_hooks(real, tracer):
    torch = real
    integration.instrument(min_us=0)
    model = network(torch)

    def train():
        for _ in range(100):
            torch.autograd.grad(model(torch.ones(4, 8)).sum(), list(model.parameters()))

    threads = [threading.Thread(target=train) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    found = collections.Counter(path for path in paths(tracer) if path.startswith("backward / Net"))
    assert found == dict.fromkeys(
        ["backward / Net", *(f"backward / Net / {n}" for n in ("head", "body.1", "body.0"))], 400
    )
    assert integration.statistics().errors == ()


def test_profiler_is_left_alone(real, tracer):
    torch = real
    integration.instrument(min_us=0)
    model = network(torch)
    with torch.autograd.profiler.profile():
        model(torch.ones(4, 8))
    assert paths(tracer) == []
    model(torch.ones(4, 8))
    assert "Net / head" in paths(tracer)


def outcomes(torch):
    """What programs of many kinds compute, and what torch makes of a model, with the same seed each time."""
    torch.manual_seed(3)
    model, x = network(torch), torch.arange(32.0).reshape(4, 8) / 10
    parameters = dict(model.named_parameters())

    def loss(parameters, x):
        return torch.func.functional_call(model, parameters, (x,)).pow(2).sum()

    grads = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    asked = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(model(asked).pow(3).sum(), asked, create_graph=True)
    first.pow(2).sum().backward()
    numbered = re.compile(r"___torch_mangle_\d+\.")  # by how often a class of this name was met
    text = io.BytesIO()
    torch.save(model.state_dict(), text)
    return {
        "vmap of grad": {name: value.tolist() for name, value in grads.items()},
        "jacrev": torch.func.jacrev(model)(x[0]).tolist(),
        "hessian": torch.func.hessian(lambda row: model(row).pow(2).sum())(x[0]).tolist(),
        "twice backward": asked.grad.tolist(),
        "fx": torch.fx.symbolic_trace(model).code,
        "export": str(torch.export.export(network(torch), (x,)).graph),
        "traced": numbered.sub("", str(torch.jit.trace(model, x).inlined_graph)),
        "scripted": numbered.sub("", str(torch.jit.script(model).inlined_graph)),
        "saved": len(text.getvalue()),
        "attributes": sorted(vars(model)),
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_transforms_traces_and_exports_are_the_same(real, tracer):
    without = outcomes(real)
    integration.instrument(min_us=0, depth=3)
    assert outcomes(real) == without
    assert integration.statistics().errors == ()
    assert tracer.current_block() is None


def test_tensor_classes_and_function_modes_are_not_told_of_us(real, tracer):
    torch = real
    seen = []

    class Told(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            seen.append(function.__name__)
            return super().__torch_function__(function, types, args, kwargs or {})

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function.__name__)
            return function(*args, **(kwargs or {}))

    def run():
        seen.clear()
        model(torch.ones(4, 8).as_subclass(Told).requires_grad_()).sum().backward()
        with Mode():
            model(torch.ones(4, 8)).sum().backward()
        return list(seen)

    model = network(torch)
    without = run()
    integration.instrument(min_us=0)
    assert run() == without
    assert paths(tracer).count("backward / Net / head") == 2


def test_a_view_that_torch_refuses_is_passed_over(real, tracer):
    torch = real
    integration.instrument(min_us=0)
    layer = torch.nn.Linear(8, 8)
    base = layer(torch.ones(4, 8))
    part, _ = base.chunk(2)
    base.mul_(2)
    with pytest.raises(RuntimeError, match="is a view"):
        part.grad_fn  # noqa: B018
    torch.nn.Identity()(part)
    layer(torch.ones(4, 8)).sum().backward()
    assert integration.statistics().errors == ()
    assert paths(tracer)[-1] == "backward / Linear"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_names_of_scripted_compiled_and_sharded_models(real, tracer):
    torch = real
    integration.instrument(min_us=0)
    x = torch.ones(4, 8)
    torch.jit.script(network(torch))(x)
    compiled = network(torch)
    compiled.compile(backend="eager")
    compiled(x)
    sharded = network(torch)
    mixed_in = type("FSDPModule", (), {})
    sharded.__class__ = type("FSDPNet", (mixed_in, type(sharded)), {})
    sharded(x)
    found = [block for block in tracer.session().blocks if len(block.path) == 1]
    assert [(block.name, block.attributes["torch.wrapper"]) for block in found] == [
        ("Net", "RecursiveScriptModule"),
        ("Net", "compile"),
        ("Net", "FSDPModule"),
    ]
    assert "Net / Module._call_impl" not in paths(tracer)


def test_ends_by_design_are_no_errors(real, tracer):
    torch = real
    integration.instrument(min_us=0, depth=3)
    layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
    x = torch.ones(2, 4, requires_grad=True)
    torch.utils.checkpoint.checkpoint(
        layer, x, use_reentrant=False
    ).sum().backward()  # stops before its last layer's end
    list(torch.utils.data.DataLoader(torch.ones(2, 4)))
    assert paths(tracer).count("DataLoader") == 3
    assert [block.error for block in tracer.session().blocks if block.error] == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_autograd_is_not_broken_into_pieces(real, tracer):
    torch = real
    enable = pytest.importorskip("torch._dynamo.compiled_autograd")._enable
    model = network(torch)
    integration.instrument(min_us=0)
    with warnings.catch_warnings(record=True) as said, enable(torch.compile(backend="eager")):
        warnings.simplefilter("always")
        model(torch.ones(4, 8)).sum().backward()
    assert not [warning for warning in said if "Dynamo" in str(warning.message)]
    assert "backward" in paths(tracer)
    assert integration.statistics().errors == ()


class Worked:
    """A data set whose items a model computes, in a worker."""

    def __init__(self, model, torch):
        self.model, self.torch = model, torch

    def __len__(self):
        return 4

    def __getitem__(self, index):
        self.model.zero_grad()
        self.model(self.torch.ones(8) * index).sum().backward()
        return self.model.head.weight.grad.clone()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_loaders_with_forked_workers(real, tracer):
    torch = real
    integration.instrument(min_us=0)
    items = Worked(network(torch), torch)
    here = [items[index].tolist() for index in range(4)]
    loader = torch.utils.data.DataLoader(items, num_workers=2, multiprocessing_context="fork")
    tracer.reset()
    assert [batch[0].tolist() for batch in loader] == here
    assert set(paths(tracer)) == {"DataLoader"}
    waits = [block.attributes for block in tracer.session().blocks]
    assert waits == [{"torch.loader.workers": 2, "torch.loader.batch": number} for number in range(len(here) + 1)]


def test_data_parallel_over_gloo(real, tracer, tmp_path):
    torch = real
    if not torch.distributed.is_available():
        pytest.skip("this torch has no distributed package")
    model, x = network(torch), torch.ones(4, 8)
    model(x).sum().backward()
    alone = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    integration.instrument(min_us=0)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        torch.nn.parallel.DistributedDataParallel(model)(x).sum().backward()
    finally:
        torch.distributed.destroy_process_group()
    assert all(torch.equal(parameter.grad, old) for parameter, old in zip(model.parameters(), alone, strict=True))
    assert paths(tracer)[0] == "Net"
    assert paths(tracer)[-1] == "backward / Net / body.0"


def test_modules_nest_as_deeply_as_without_us(real, tracer):
    torch = real

    class Deep(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, x, levels):
            return self.layer(x) if levels == 0 else self(x, levels - 1)

    def deepest():
        model = Deep()
        for levels in range(100, 400):
            try:
                model(torch.ones(1, 4), levels)
            except RecursionError:  # noqa: PERF203
                return levels
        raise AssertionError("no limit")

    without = deepest()
    integration.instrument(min_us=0)
    assert without - 5 <= deepest() <= without
