"""A stand-in for torch with the parts of its shape that the integration touches, and an autograd on a thread of its own
(as torch has one for each CUDA device), which the real torch does not have on a machine without a GPU."""

import queue
import sys
import threading
import types


class Node:
    count = 0

    def __init__(self, *inputs):
        Node.count += 1
        self.sequence = Node.count
        self.inputs = [node for node in inputs if node is not None]
        self.prehooks = []

    def register_prehook(self, hook):
        self.prehooks.append(hook)

    def _register_hook_dict(self, tensor):
        hooks = tensor._backward_hooks

        def run(gradient):
            for hook in hooks.values():
                assert hook(gradient) is None

        self.prehooks.append(run)


class Tensor:
    def __init__(self, grad_fn=None):
        self.grad_fn = grad_fn
        self._backward_hooks = None

    def __mul__(self, number):
        return operation(self)

    def backward(self):
        sys.modules["torch"].autograd.backward(self)


def operation(*tensors):
    return Tensor(Node(*(tensor.grad_fn for tensor in tensors)))


def _wrapped_call_impl(self, *args, **kwargs):
    if self._compiled_call_impl is not None:
        return self._compiled_call_impl(*args, **kwargs)
    else:  # noqa: RET505 - as torch has it, so that it is compiled to the same
        return self._call_impl(*args, **kwargs)


def layers():
    """``Module``, ``Linear``, ``Sequential`` and ``ModuleList``, made anew so that two stand-ins share no patches."""

    class Module:
        _compiled_call_impl = None

        def __init__(self, **children):
            self._modules = {}
            for name, child in children.items():
                self._modules[name] = child
                setattr(self, name, child)

        def _call_impl(self, *args, **kwargs):
            return self.forward(*args, **kwargs)

        __call__ = _wrapped_call_impl

    class Linear(Module):
        def forward(self, x):
            return operation(operation(x))

    class Sequential(Module):
        def __init__(self, *children):
            super().__init__(**{str(i): child for i, child in enumerate(children)})

        def forward(self, x):
            for child in self._modules.values():
                x = child(x)
            return x

    class ModuleList(Sequential):
        forward = None

        def __iter__(self):
            return iter(self._modules.values())

    return types.SimpleNamespace(Module=Module, Linear=Linear, Sequential=Sequential, ModuleList=ModuleList)


class record_function:
    def __init__(self, name, args=None):
        self.name = name

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        return None


class Engine:
    """Runs the newest node that is ready, on the autograd thread or on the caller's."""

    def __init__(self, own_thread):
        self.callbacks = []
        self.observe = lambda node: None  # called where a node runs
        self.work = queue.SimpleQueue()
        self.thread = threading.Thread(target=self.serve, daemon=True) if own_thread else None
        if self.thread:
            self.thread.start()

    def serve(self):
        while True:
            root, done, errors = self.work.get()
            try:
                self.execute(root)
            except Exception as error:
                errors.append(error)
            done.set()

    def queue_callback(self, callback):
        self.callbacks.append(callback)

    def execute(self, root):
        waits = {}
        seen = {root}
        todo = [root]
        while todo:
            for node in todo.pop().inputs:
                waits[node] = waits.get(node, 0) + 1
                if node not in seen:
                    seen.add(node)
                    todo.append(node)
        ready = [root]
        while ready:
            node = max(ready, key=lambda known: known.sequence)
            ready.remove(node)
            for hook in list(node.prehooks):
                assert hook(None) is None
            self.observe(node)
            for other in node.inputs:
                waits[other] -= 1
                if not waits[other]:
                    ready.append(other)
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            callback()

    def run(self, root):
        if self.thread is None:
            self.execute(root)
            return
        done, errors = threading.Event(), []
        self.work.put((root, done, errors))
        assert done.wait(20)
        if errors:
            raise errors[0]


def make(own_thread=True):
    """A fresh module ``torch``."""
    torch = types.ModuleType("torch")
    torch.__spec__ = types.SimpleNamespace(_initializing=False, name="torch", origin=None)
    engine = Engine(own_thread)
    profiling = types.SimpleNamespace(on=False)

    def backward(tensors, *args, **kwargs):
        engine.run(tensors.grad_fn)

    def push(msg):
        torch.cuda.nvtx.names.append(msg)
        return len(torch.cuda.nvtx.names) - 1

    namespace = types.SimpleNamespace
    torch.Tensor = Tensor
    torch.empty = lambda size, device, requires_grad=False: Tensor()
    torch.nn = layers()
    torch.is_grad_enabled = lambda: True
    torch.compiler = namespace(is_compiling=lambda: False)
    torch._C = namespace(_is_torch_function_mode_enabled=lambda: False)
    torch.profiling = profiling

    class Profiler(namespace):
        _is_profiler_enabled = property(lambda self: profiling.on)

    own_range = type("record_function", (record_function,), {})
    torch.autograd = namespace(
        backward=backward,
        grad=backward,
        profiler=Profiler(record_function=own_range),
        Variable=namespace(_execution_engine=engine),
    )
    nvtx = namespace(names=[], range_push=push, range_pop=lambda: len(nvtx.names) - bool(nvtx.names.pop()))
    stats = {
        "allocated_bytes.all.current": 1000,
        "reserved_bytes.all.current": 4096,
        "allocated_bytes.all.peak": 3000,
    }
    torch.cuda = namespace(nvtx=nvtx, is_initialized=lambda: True, memory_stats=lambda: dict(stats), stats=stats)
    torch.optim = namespace()

    def compile(model=None, **kwargs):
        return (lambda other: torch.compile(other)) if model is None else lambda *args: model(*args)

    torch.compile = compile
    return torch
