"""Modules have frames, which become blocks when somebody asks: everything is as with a block for each of them.

Random programs on the stand-in for torch run twice, with frames and without, and must tell the same."""

import asyncio
import contextlib
import contextvars
import sys
import threading

import fake_torch
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpusense
from gpusense._aggregation.pipeline import Pipeline
from gpusense._attribution import open_blocks
from gpusense._attribution.boundaries import FRAME_OPENED
from gpusense._tracing.block import Blocks
from gpusense.integrations import torch as integration

#: What a module does, one after the other; lists are what happens inside.
plain = st.sampled_from(["launch", "launch", "ask", "raise", "listen"])
inside = st.sampled_from(["module", "module", "module", "trace", "range", "catch", "copied", "other", "task", "scope"])
actions = st.recursive(
    st.lists(plain, max_size=3),
    lambda more: st.lists(st.one_of(plain, st.tuples(inside, more)), max_size=4),
    max_leaves=20,
)


class Stop(Exception):
    pass


class Listener:
    def block_opened(self, block): ...

    def block_closed(self, block): ...


class Program:
    """Runs ``todo`` as a model, forward and backward; ``launched`` and ``asked`` are what happened, in its order."""

    def __init__(self, torch, tracer, todo, asks=True):
        self.torch, self.tracer, self.asks = torch, tracer, asks
        self.newest = 0
        self.launched, self.asked, self.errors = [], [], []
        self.model = self.module_of([("module", todo), "launch", ("module", [*todo])])
        tracer.recorder.marker, tracer.recorder.newest = (lambda token: None), (lambda: self.newest)
        torch.autograd.Variable._execution_engine.observe = self.observe

    def module_of(self, todo):
        program, children = self, {}
        for number, action in enumerate(_flat(todo)):
            if isinstance(action, tuple) and action[0] == "module":
                children[f"m{number}"] = self.module_of(action[1])

        class Net(self.torch.nn.Module):
            def forward(self, x):
                left = iter(self._modules.values())
                return program.perform(todo, x, left)

        return Net(**children)

    def perform(self, todo, x, left):
        for action in todo:
            x = self.act(action, x, left)
        return x

    def act(self, action, x, left):
        if action == "launch":
            self.launch()
            return fake_torch.operation(x)
        if action == "ask":
            self.ask()
        elif action == "raise":
            raise Stop
        elif action == "listen":
            listener = Listener()
            self.tracer.add_block_listener(listener)
            self.tracer.remove_block_listener(listener)
        else:
            return self.nested(*action, x, left)
        return x

    def nested(self, kind, todo, x, left):
        if kind == "module":
            return next(left)(x)
        around = {
            "trace": lambda: gpusense.trace("block"),
            "range": lambda: self.torch.autograd.profiler.record_function("range"),
            "catch": lambda: contextlib.suppress(Stop),
        }.get(kind)
        if around is not None:
            with around():
                x = self.perform(todo, x, left)
            return x
        if kind == "scope":
            scope = self.tracer.open_scope("scope")
            try:
                return self.perform(todo, x, left)
            finally:
                self.tracer.close_scope(scope)
        if kind == "task" and asyncio._get_running_loop() is not None:  # one loop at a time
            kind = "copied"
        if kind == "task":

            async def both():
                other = asyncio.ensure_future(self.elsewhere())
                await asyncio.sleep(0)
                try:
                    return self.perform(todo, x, left)
                finally:
                    await other

            with contextlib.closing(asyncio.new_event_loop()) as loop:
                return loop.run_until_complete(both())
        context = contextvars.copy_context() if kind == "copied" else contextvars.Context()
        return context.run(self.perform, todo, x, left)

    async def elsewhere(self):
        with gpusense.trace("of another task"):
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    def launch(self):
        self.newest += 1
        self.launched.append((threading.get_ident(), self.newest))

    def ask(self):
        block = self.tracer.current_block()
        self.asked.append(
            (block.path, block.name, block.end_ns, block.outer.path if block.outer else None) if block else None
        )

    def observe(self, node):
        self.launch()
        if node.sequence % 5 == 0:
            self.tracer.recorder.tick()  # as gpusense's own thread does at any moment
        if self.asks and node.sequence % 3 == 0:
            self.ask()

    def run(self, times=2):
        for _ in range(times):
            with gpusense.trace("step"):
                try:
                    output = self.model(fake_torch.Tensor())
                    if output.grad_fn is not None:
                        output.backward()
                except Stop:
                    self.errors.append("stopped")
            self.ask()

    def told(self):
        session = self.tracer.session()
        blocks = sorted(session.blocks, key=lambda block: block.block_id)
        by_id = {block.block_id: block for block in blocks}
        for block in blocks:
            assert block.start_ns <= block.end_ns
            parent = by_id.get(block.parent_id)
            assert block.path == ((*parent.path, block.name) if parent else (block.name,))
        attribution = self.tracer.recorder.store.pipeline.attribution
        assert attribution.resolve(threading.get_ident(), self.newest + 1)[0] == (), "a block was left open"
        owners = []
        for thread, number in self.launched:
            leaves, _ = attribution.resolve(thread, number)
            owners.append([attribution.path(leaf) for leaf in leaves])
        rows = [(block.path, block.error, block.attributes) for block in blocks]
        return rows, owners, self.asked, self.errors, integration.statistics().errors


def _flat(todo):
    """What is done by one module itself, in whatever contexts."""
    for action in todo:
        yield action
        if isinstance(action, tuple) and action[0] != "module":
            yield from _flat(action[1])


@pytest.fixture(params=[True, False], ids=["own thread", "caller's thread"])
def told(request, monkeypatch, tracer):
    """Runs a program in one of both ways and gives what there is to tell, and how many frames there were."""

    def run(todo, frames, depth, asks=True, min_us=0):
        torch = fake_torch.make(own_thread=request.param)
        monkeypatch.setitem(sys.modules, "torch", torch)
        fake_torch.Node.count = 0
        made = []
        with monkeypatch.context() as patched:
            if not frames:
                patched.setattr(Blocks, "ways_of_frames", lambda self, block: None)
            else:
                real = tracer._append
                patched.setattr(tracer, "_append", lambda item: (made.append(item[0]), real(item)))
            tracer.reset()
            store = tracer.recorder.store
            store._use(Pipeline(store._limits(), emit=store._sinks.put, start_ns=tracer.recorder.start_ns))
            tracer.watched = store.watched.blocks
            integration.instrument(min_us=min_us, depth=depth)
            try:
                program = Program(torch, tracer, todo, asks)
                program.run()
                tracer.recorder.marker = None
                return program.told(), made.count(FRAME_OPENED)
            finally:
                integration.uninstrument()

    return run


@given(actions, st.sampled_from([2, 3]), st.sampled_from([0, 0, 1e-9]))
@settings(deadline=None)
def _same(told, todo, depth, min_us):
    """With ``min_us`` modules are being judged and have blocks, in whose model's backward pass there is a frame."""
    with_frames, made = told(todo, True, depth, min_us=min_us)
    without, none = told(todo, False, depth, min_us=min_us)
    assert with_frames == without
    assert none == 0
    assert not open_blocks.running
    _same.frames += made


_same.frames = 0


def test_frames_tell_what_blocks_tell(told):
    before = _same.frames
    _same(told)
    assert _same.frames > before


def test_what_nobody_asks_for_never_becomes_a_block(told, monkeypatch):
    become = []
    monkeypatch.setattr(open_blocks, "_become", lambda frame: become.append(frame.path))
    (rows, owners, _, _, errors), made = told(["launch", ("module", ["launch"])], True, 2, asks=False)
    assert made == 10  # of two modules below the model forward, and of all three backward, in two steps
    assert {path for path, *_ in rows} >= {("step", "Net", "m0"), ("step", "backward", "Net", "m0")}
    assert ([("step", "Net", "m0")] in owners, errors, become) == (True, (), [])
