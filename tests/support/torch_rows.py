"""What torch's compilers, exporters and copies make of models: ``python torch_rows.py [before|after] [cuda]``.

Prints a JSON object: for each row what came of it, or the error. With ``before`` or ``after`` gpusense instruments
torch before or after dynamo has been imported; without either it does not, and the rows must come out the same.
"""

import copy
import io
import json
import pickle
import re
import sys
import tempfile
import warnings

import torch
from torch import nn

DEVICE = "cuda" if "cuda" in sys.argv else "cpu"
MANGLED = re.compile(r"___torch_mangle_\d+\.")  # by how often a class of this name was met
ROWS = {}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.head = Head()

    def forward(self, x):
        return self.head(self.body(x) + x)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(8, 2)

    def forward(self, x):
        return self.out(x).relu()


def row(function):
    ROWS[function.__name__] = function
    return function


def called():
    """A model that has been called before."""
    torch.manual_seed(1)
    model = Net().to(DEVICE)
    model(data())
    return model


def data():
    return torch.arange(32.0, device=DEVICE).reshape(4, 8) / 10


def graphs(function, *args, calls=2, fullgraph=False):
    """The code of each graph that ``function`` is compiled to, and what the last of its ``calls`` gives."""
    torch._dynamo.reset()
    found = []

    def backend(graph, _):
        found.append(graph.code)
        return graph.forward

    compiled = torch.compile(function, backend=backend, fullgraph=fullgraph)
    for _ in range(calls):
        result = compiled(*args)
    return found, result.tolist()


def breaks(function, *args):
    torch._dynamo.reset()
    said = torch._dynamo.explain(function)(*args)
    return [said.graph_break_count, said.graph_count, said.op_count]


@row
def compiled_after_a_call():
    return graphs(called(), data(), fullgraph=True)


@row
def compiled_before_a_call():
    torch.manual_seed(1)
    return graphs(Net().to(DEVICE), data(), fullgraph=True)


@row
def no_graph_break():
    return breaks(called(), data())


@row
def compiled_in_place():
    torch._dynamo.reset()
    model = called()
    model.compile(backend="eager", fullgraph=True)
    return [model(data()).tolist() for _ in range(2)]


@row
def compiled_part_of_an_eager_model():
    torch._dynamo.reset()
    model = called()
    model.head = torch.compile(model.head, backend="eager", fullgraph=True)
    return [model(data()).tolist() for _ in range(2)]


@row
def function_that_calls_a_model():
    model = called()
    return graphs(lambda x: model(x) * 2, data(), fullgraph=True)


@row
def parts_with_hooks():
    model = called()
    model.head.register_forward_hook(lambda module, args, output: output + 1)
    model.body[0].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    return graphs(model, data(), fullgraph=True), breaks(model, data())


@row
def own_call():
    class Own(Head):
        def __call__(self, x):
            return super().__call__(x) * 3

    model = called()
    torch.manual_seed(2)
    model.head = Own().to(DEVICE)
    model(data())
    return graphs(model, data(), fullgraph=True)


@row
def a_break_of_the_program_stays_the_only_one():
    model = called()

    def step(x):
        y = model(x)
        torch._dynamo.graph_break()
        return model(y.repeat(1, 4)) + 1

    return graphs(step, data()), breaks(step, data())


@row
def training_step():
    torch._dynamo.reset()
    model, losses = called(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for _ in range(3):
        loss = compiled(data()).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@row
def backward_inside():
    model = called()

    def step(x):
        loss = model(x).sum()
        loss.backward()
        return loss.detach()

    return graphs(step, data()), model.head.out.bias.grad.tolist()


@row
def grad_inside():
    def step(x):
        return torch.autograd.grad(x.pow(2).sum(), x)[0]

    return graphs(step, data().requires_grad_())


@row
def optimizer_inside():
    model = called()
    model(data()).sum().backward()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x):
        optimizer.step()
        return x + 1

    return graphs(step, data())


@row
def range_inside():
    def step(x):
        with torch.profiler.record_function("part"):
            return x.relu() + 1

    return graphs(step, data())


@row
def nvtx_inside():
    if DEVICE == "cpu":
        return None

    def step(x):
        torch.cuda.nvtx.range_push("part")
        y = x.relu() + 1
        torch.cuda.nvtx.range_pop()
        return y

    return graphs(step, data())


@row
def compiled_inside_compiled():
    model = called()
    inner = torch.compile(lambda x: model(x) + 1, backend="eager")
    return graphs(lambda x: inner(x) * 2, data(), fullgraph=True)


@row
def checkpoint_inside():
    model = called()

    def step(x):
        return torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)

    return graphs(step, data(), fullgraph=True)


@row
def disabled_part():
    model = called()
    head = torch.compiler.disable(model.head)
    return graphs(lambda x: head(model.body(x)) + 1, data())


@row
def exported():
    return str(torch.export.export(called(), (data(),)).graph)


@row
def exported_strictly():
    return str(torch.export.export(called(), (data(),), strict=True).graph)


@row
def symbolic_trace():
    return torch.fx.symbolic_trace(called()).code


@row
def proxy_trace():
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(called())(data()).code


@row
def jit_trace():
    return MANGLED.sub("", str(torch.jit.trace(called(), data()).inlined_graph))


@row
def jit_script():
    return MANGLED.sub("", str(torch.jit.script(called()).inlined_graph))


@row
def jit_frozen_and_saved():
    text = io.BytesIO()
    torch.jit.save(torch.jit.freeze(torch.jit.script(called().eval())), text)
    text.seek(0)
    return torch.jit.load(text)(data()).tolist()


@row
def functional():
    model = called()
    parameters = dict(model.named_parameters())

    def loss(parameters, x):
        return torch.func.functional_call(model, parameters, (x,)).sum()

    return torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, data())["head.out.bias"].tolist()


@row
def deep_copy():
    model = copy.deepcopy(called())
    return [model(data()).tolist(), sorted(vars(model))]


@row
def pickled():
    text = pickle.dumps(called())
    return [pickle.loads(text)(data()).tolist(), b"gpusense" in text]


@row
def saved_whole():
    text = io.BytesIO()
    torch.save(called(), text)
    text.seek(0)
    return torch.load(text, weights_only=False)(data()).tolist()


@row
def packaged():
    from torch.package import PackageExporter, PackageImporter

    with tempfile.NamedTemporaryFile(suffix=".pt") as file:
        with PackageExporter(file.name) as package:
            package.extern(["torch.**", "sys", "io"])
            package.intern("**")
            package.save_pickle("model", "model.pkl", nn.Sequential(nn.Linear(2, 2).requires_grad_(False)))
        names = PackageImporter(file.name).file_structure()
    return "gpusense" in str(names)


@row
def compiled_copy():
    torch._dynamo.reset()
    model = copy.deepcopy(torch.compile(called(), backend="eager", fullgraph=True))
    return model(data()).tolist()


def main():
    if "after" in sys.argv:
        import torch._dynamo  # noqa: F401
    integration = None
    if "before" in sys.argv or "after" in sys.argv:
        from gpusense.integrations import torch as integration

        assert integration.instrument(min_us=0, depth=3) is True
    found = {}
    for name, function in ROWS.items():
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                found[name] = function()
            except Exception as error:
                found[name] = f"{type(error).__name__}: {error}"[:1000]
        found[name] = [found[name], sorted({str(one.message)[:200] for one in said})]
    errors = () if integration is None else integration.statistics().errors
    print(json.dumps({"rows": found, "errors": errors}))


if __name__ == "__main__":
    main()
