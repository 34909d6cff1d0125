"""Modules have frames, which become blocks when somebody asks: everything is as with a block for each of them.

Random programs on the stand-in for torch run twice, with frames and without, and must tell the same."""

import asyncio
import contextlib
import contextvars
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import fake_torch
from support.torch_shape import paths

import gpusense
from gpusense._aggregation.pipeline import Pipeline
from gpusense._attribution import open_blocks
from gpusense._attribution.boundaries import FRAME_FOLLOWED, FRAME_OPENED
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


CHILDREN = 5
BACK = ["backward", "backward / Sequential", *(f"backward / Sequential / {i}" for i in reversed(range(CHILDREN)))]
OWNERS = [path for path in BACK[2:] for _ in range(2)]  # each module has two nodes


class Siblings:
    """A model of five modules; ``at`` says what happens where the n-th node of a backward pass runs."""

    def __init__(self, torch, tracer):
        self.tracer = tracer
        self.newest, self.missing, self.ran, self.at = 0, False, [], {}
        tracer.recorder.marker, tracer.recorder.newest = (lambda token: None), self.newest_id
        self.engine = torch.autograd.Variable._execution_engine
        self.engine.observe = self.observe
        integration.instrument(min_us=0)
        self.model = torch.nn.Sequential(*(torch.nn.Linear() for _ in range(CHILDREN)))
        self.step()  # from then on the modules keep hooks
        tracer.recorder.tick()
        tracer.reset()

    def newest_id(self):
        return self.newest + (open_blocks.LAST_ID + 1 if self.missing else 0)

    def observe(self, node):
        self.newest += 1
        self.ran.append((threading.get_ident(), self.newest))
        self.at.pop(len(self.ran), lambda: None)()

    def step(self):
        self.ran.clear()
        self.model(fake_torch.Tensor()).backward()

    def owners(self):
        """Which block the launch of each node of the last step belongs to."""
        self.tracer.recorder.tick()
        attribution = self.tracer.recorder.store.pipeline.attribution
        found = []
        for thread, number in self.ran:
            leaves, _ = attribution.resolve(thread, number)
            found.append(" or ".join(" / ".join(attribution.path(leaf)) for leaf in leaves))
        return found

    def backward(self):
        return [path for path in paths(self.tracer) if path.startswith("backward")]


@pytest.fixture(params=[True, False], ids=["own thread", "caller's thread"])
def siblings(request, monkeypatch, tracer):
    torch = fake_torch.make(own_thread=request.param)
    monkeypatch.setitem(sys.modules, "torch", torch)
    return Siblings(torch, tracer)


def test_siblings_follow_one_another_without_blocks(siblings, monkeypatch):
    become = []
    monkeypatch.setattr(open_blocks, "_become", lambda frame: become.append(frame.path))
    for _ in range(3):
        siblings.step()
        assert siblings.owners() == OWNERS
    assert siblings.backward() == BACK * 3
    assert (become, open_blocks.running) == ([], {})
    assert integration.statistics() == integration.Statistics(roots=1)


def test_gpusenses_thread_makes_records_while_the_pass_goes_on(siblings):
    seen = []

    def tick():
        siblings.tracer.recorder.tick()
        seen.extend(record.name for record in siblings.tracer.session().blocks if "backward" in record.path)

    def elsewhere():
        thread = threading.Thread(target=tick)
        thread.start()
        thread.join(20)

    siblings.at = {5: elsewhere}  # in the third module
    siblings.step()
    assert seen == ["4", "3"]
    assert siblings.owners() == OWNERS
    assert siblings.backward() == BACK


def test_whoever_asks_in_a_backward_pass_gets_the_modules_block(siblings):
    asked = []
    ask = lambda: asked.append(siblings.tracer.current_block().path)  # noqa: E731
    siblings.at = {3: ask, 4: ask, 5: ask}
    siblings.step()
    assert asked == [("backward", "Sequential", name) for name in ("3", "3", "2")]
    assert siblings.owners() == OWNERS
    assert siblings.backward() == BACK


@pytest.mark.parametrize("ends", ["listener", "detach", "uninstrument"])
def test_what_ends_frames_in_a_backward_pass(siblings, ends):
    def end():
        if ends == "listener":
            siblings.tracer.add_block_listener(Listener())
        elif ends == "detach":
            siblings.tracer.recorder._mark_no_more()
        else:
            integration.uninstrument()

    siblings.at = {7: end}
    siblings.step()
    wanted = OWNERS if ends == "listener" else OWNERS[:7]
    assert siblings.owners()[: len(wanted)] == wanted
    assert not open_blocks.running
    assert integration.statistics().errors == ()


def test_places_that_cannot_be_read_are_lost_and_counted(siblings):
    recorder = siblings.tracer.recorder

    def miss():
        siblings.missing, recorder.marker = True, lambda token: True  # fails

    def find():
        siblings.missing = False

    siblings.at = {5: miss, 7: find}  # the boundary after the sixth may be anywhere between its neighbours
    siblings.step()
    owners = siblings.owners()
    assert (owners[:4], owners[8:]) == (OWNERS[:4], OWNERS[8:])
    assert all(one in found.split(" or ") for one, found in zip(OWNERS[4:8], owners[4:8], strict=True))
    assert siblings.backward() == BACK
    assert siblings.tracer.recorder.counters().lost_markers == 2


def test_an_interrupt_where_a_sibling_follows(siblings):
    if siblings.engine.thread is not None:
        pytest.skip("interrupts come to the thread that called backward()")
    tracer, real = siblings.tracer, siblings.tracer._append

    def interrupted(item):
        if item[0] == FRAME_FOLLOWED:
            tracer._append = real
            raise KeyboardInterrupt
        real(item)

    tracer._append = interrupted
    with pytest.raises(KeyboardInterrupt):
        siblings.step()
    integration._installed.now.backward._finish()  # torch drops its callbacks with the pass
    for _ in range(2):
        siblings.step()
        assert siblings.owners() == OWNERS
    assert not open_blocks.running
