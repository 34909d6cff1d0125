"""In a backward pass the hooks of siblings run no Python; what they leave becomes frames, whatever happens then."""

import logging
import os
import signal
import sys
import threading

import fake_torch
import pytest
from torch_shape import paths

import gpusense
from gpusense._attribution import open_blocks
from gpusense._attribution.boundaries import FRAME_FOLLOWED
from gpusense._runtime import log
from gpusense.integrations import torch as integration
from gpusense.integrations.torch import _backward

CHILDREN = 5
BACK = ["backward", "backward / Sequential", *(f"backward / Sequential / {i}" for i in reversed(range(CHILDREN)))]


class Setting:
    """A model of five modules, with ``newest`` the newest id, which grows by one where a node runs."""

    def __init__(self, torch, tracer):
        self.torch, self.tracer = torch, tracer
        self.newest, self.missing, self.ran, self.at = 0, False, [], {}
        tracer.recorder.marker, tracer.recorder.newest = (lambda token: None), self.newest_id
        self.engine = torch.autograd.Variable._execution_engine
        self.engine.observe = self.observe
        integration.instrument(min_us=0)
        self.use(CHILDREN)

    def use(self, children):
        """A model that has been called once: its modules have hooks of their own from then on."""
        self.model = self.torch.nn.Sequential(*(self.torch.nn.Linear() for _ in range(children)))
        self.step()
        self.tracer.recorder.tick()
        self.tracer.reset()

    def newest_id(self):
        return self.newest + (open_blocks.LAST_ID + 1 if self.missing else 0)

    def observe(self, node):
        self.newest += 1
        self.ran.append((threading.get_ident(), self.newest))
        act = self.at.pop(len(self.ran), None)
        if act is not None:
            act()

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

    @property
    def entries(self):
        return integration._Active.passes._entries

    @property
    def run(self):
        """The pass under way."""
        (run,) = integration._Active.passes._passes.values()
        return run

    def backward(self):
        return [path for path in paths(self.tracer) if path.startswith("backward")]


OWNERS = [path for path in BACK[2:] for _ in range(2)]  # each module has two nodes


@pytest.fixture(params=["own thread", "caller's thread"])
def setting(request, monkeypatch, tracer):
    """Called once, so that hooks are kept; what that left is forgotten."""
    stand_in = fake_torch.make(own_thread=request.param == "own thread")
    monkeypatch.setitem(sys.modules, "torch", stand_in)
    return Setting(stand_in, tracer)


@pytest.fixture
def called(monkeypatch):
    """Calls of Python by hooks."""
    calls = []
    real = _backward.Backward._entered
    monkeypatch.setattr(
        _backward.Backward, "_entered", lambda self, hook, *rest: calls.append(hook.call.place.name) or real(self, hook)
    )
    return calls


def test_only_the_first_of_siblings_runs_python(called, setting):
    called.clear()
    for _ in range(3):
        setting.step()
        assert setting.owners() == OWNERS
    assert called == [str(CHILDREN - 1), "Sequential"] * 3  # both on the node of the model's output
    assert setting.backward() == BACK * 3
    assert not setting.entries._left
    assert not open_blocks.running
    assert integration.statistics() == integration.Statistics(roots=1)


def test_gpusenses_thread_makes_frames_while_the_pass_goes_on(setting):
    seen = []

    def tick():
        setting.tracer.recorder.tick()
        seen.extend(record.name for record in setting.tracer.session().blocks if "backward" in record.path)

    def elsewhere():
        thread = threading.Thread(target=tick)
        thread.start()
        thread.join(20)

    setting.at = {5: elsewhere}  # in the third module
    setting.step()
    assert seen == ["4", "3"]
    assert setting.owners() == OWNERS
    assert setting.backward() == BACK


def test_whoever_asks_gets_a_block_and_the_others_go_on(called, setting):
    asked = []
    ask = lambda: asked.append(setting.tracer.current_block().path)  # noqa: E731
    called.clear()
    setting.at = {3: ask, 4: ask, 5: ask}
    setting.step()
    assert asked == [("backward", "Sequential", name) for name in ("3", "3", "2")]
    assert setting.owners() == OWNERS
    assert setting.backward() == BACK
    assert called == ["4", "Sequential", "2", "1"]  # each question ended it once
    called.clear()
    setting.at = dict.fromkeys(range(1, 11), ask)
    setting.step()
    assert called == ["4", "Sequential", "3", "2", "1", "0"]
    assert setting.owners() == OWNERS
    assert not integration._Active.passes._passes


def test_a_program_that_always_asks_is_not_armed_for_ever(setting):
    armed = []

    def ask():
        armed.append(bool(setting.run.armed))
        setting.tracer.current_block()

    setting.use(9)
    setting.at = dict.fromkeys(range(1, 19), ask)
    setting.step()
    assert armed[::2] == [True] * 4 + [False] * 5


@pytest.mark.parametrize("ends", ["listener", "detach", "uninstrument"])
def test_what_ends_frames_ends_entries(setting, ends):
    class Listener:
        def block_opened(self, block): ...

        def block_closed(self, block): ...

    def end():
        if ends == "listener":
            setting.tracer.add_block_listener(Listener())
        elif ends == "detach":
            setting.tracer.recorder._mark_no_more()
        else:
            integration.uninstrument()
        assert not setting.entries_of[0]._left
        assert all(hook.calls[0] is hook.full for hook in setting.armed)

    def note():
        setting.armed, setting.entries_of = list(setting.run.armed), [setting.entries]
        assert setting.armed

    setting.at = {3: note, 7: end}
    setting.step()
    wanted = OWNERS if ends == "listener" else OWNERS[:7]
    assert setting.owners()[: len(wanted)] == wanted
    assert not open_blocks.running
    assert integration.statistics().errors == ()


def test_places_that_cannot_be_read_are_lost_and_counted(setting):
    def miss():
        setting.missing = True

    def find():
        setting.missing = False

    setting.at = {5: miss, 7: find}  # the boundary after the sixth may be anywhere between its neighbours
    setting.step()
    owners = setting.owners()
    assert (owners[:4], owners[8:]) == (OWNERS[:4], OWNERS[8:])
    assert all(one in found.split(" or ") for one, found in zip(OWNERS[4:8], owners[4:8], strict=True))
    assert setting.backward() == BACK
    assert setting.tracer.recorder.counters().lost_markers == 2


def test_a_module_on_an_unexpected_thread_gets_no_block_and_entries_end(setting, caplog, monkeypatch):
    monkeypatch.setattr(log, "_said", set())

    def stray():
        thread = threading.Thread(target=setting.run.armed[0].calls[0], args=(None,))
        thread.start()
        thread.join(20)

    setting.at = {2: stray}
    with caplog.at_level(logging.WARNING):
        setting.step()
        assert setting.owners() == OWNERS
        for _ in range(2):
            setting.step()
            assert setting.owners() == OWNERS
            assert setting.backward()[-len(BACK) :] == BACK
    assert ["unexpected thread" in record.message for record in caplog.records] == [True]
    setting.at = {2: lambda: setting.ran.append(setting.run.armed)}
    setting.step()
    assert setting.ran[2] == []
    assert integration.statistics().errors == ()


def test_only_siblings_whose_nodes_run_on_this_thread_are_armed(setting, monkeypatch):
    places = {"2": "cuda:1"}
    real = _backward.Backward._lend

    def lend(self, call, produced, output):
        output.device = places.get(call.place.name, "cuda:0")
        real(self, call, produced, output)

    monkeypatch.setattr(_backward.Backward, "_lend", lend)
    integration.uninstrument()
    integration.instrument(min_us=0)
    armed = []
    setting.use(CHILDREN)
    setting.at = {1: lambda: armed.extend(hook.call.place.name for hook in setting.run.armed)}
    setting.step()
    assert sorted(armed) == ["0", "1", "3"]
    assert setting.owners() == OWNERS


def test_an_interrupt_while_frames_are_made(setting):
    if setting.engine.thread is not None:
        pytest.skip("interrupts come to the thread that called backward()")
    tracer, real = setting.tracer, setting.tracer._append

    def interrupted(item):
        if item[0] == FRAME_FOLLOWED:
            tracer._append = real
            raise KeyboardInterrupt
        real(item)

    tracer._append = interrupted
    with pytest.raises(KeyboardInterrupt):
        setting.step()
    integration._Active.passes._finish()  # torch drops its callbacks with the pass
    for _ in range(2):
        setting.step()
        assert setting.owners() == OWNERS
    assert not open_blocks.running


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # raised from Python 3.15 on
def test_a_child_that_is_forked_while_frames_are_made_is_not_stuck(setting):
    entries, results = setting.entries, []

    def fork():
        held, over = threading.Event(), threading.Event()

        def hold():
            with entries._lock:
                held.set()
                over.wait(20)

        holder = threading.Thread(target=hold)
        holder.start()
        held.wait(20)
        child = os.fork()
        if not child:
            signal.alarm(20)
            with gpusense.trace("in the child"):
                pass
            setting.run.ahead and setting.run.ahead()
            integration._Active.passes._finish()
            os._exit(7)
        over.set()
        holder.join(20)
        results.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    setting.at = {5: fork}
    setting.step()
    assert results == [7]
    assert setting.owners() == OWNERS
