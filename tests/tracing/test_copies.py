"""Blocks of a copy of gpusense inside another package, in the session of the copy that records. Real copies."""

import asyncio
import gc
import importlib
import sys
import threading

import pytest
from support.control import begun, nothing_to_capture

import gpusense
from gpusense._capi.interpreter import interpreter_dict
from gpusense._tracing import copies, select
from gpusense.cli import vendor


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """Packages that carry a copy, one of them deeper, and one of a version that hands over nothing."""
    folder = tmp_path_factory.mktemp("hosts")
    for name in ("host", "other/extern", "old"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").touch()
        vendor.copy(str(folder / name / "sense"), core=True)
    _make_old(folder / "old" / "sense")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield {name: importlib.import_module(f"{name}.sense") for name in ("host", "other.extern", "old")}
    for module in [name for name in sys.modules if name.partition(".")[0] in ("host", "other", "old")]:
        del sys.modules[module]
    gc.collect()  # tracers say when they go: not in the middle of somebody else's test


def _make_old(copy):
    """Before there was anything that copies say to each other."""
    (copy / "_tracing" / "copies.py").rename(copy / "_tracing" / "unmet.py")
    text = (copy / "_tracing" / "unmet.py").read_text("utf-8")
    assert "VERSION = 1 " in text
    (copy / "_tracing" / "unmet.py").write_text(text.replace("VERSION = 1 ", "VERSION = 0 "), "utf-8")
    for name in ("noop", "select", "tracer"):
        path = copy / "_tracing" / f"{name}.py"
        assert "from .copies import" in path.read_text("utf-8")
        path.write_text(path.read_text("utf-8").replace("from .copies import", "from .unmet import"), "utf-8")


@pytest.fixture
def undecided(hosts, monkeypatch):
    """All copies as if they had not been used yet, in a process in which none has met another."""
    for name in ("GPUSENSE", "GPUSENSE_LIBCUDA", "GPUSENSE_LIBCUPTI"):
        monkeypatch.delenv(name, raising=False)
    place = interpreter_dict()
    if not isinstance(place, dict):
        pytest.skip(place.reason)
    place.pop(copies.KEY, None)
    controls = [begun(monkeypatch)]
    for copy in hosts.values():
        theirs = importlib.import_module(f"{copy.__name__}._tracing.select")
        controls.append(theirs.Control(nothing_to_capture))
        monkeypatch.setattr(theirs, "control", controls[-1])
        monkeypatch.setattr(copy, "_active", copy._Undecided())
    yield
    for control in controls:
        if control.live is not None:
            control.live.close()
    place.pop(copies.KEY, None)


@pytest.fixture
def host(hosts, undecided):
    return hosts["host"]


@pytest.fixture
def other(hosts, undecided):
    return hosts["other.extern"]


def paths(copy):
    return ["/".join(record.path) for record in copy.get_tracer().session().blocks]


@pytest.mark.parametrize("first", ["host", "gpusense"])
def test_a_block_comes_once_inside_the_applications_in_either_order(host, first):
    if first == "host":
        with host.trace("before"):
            pass
    assert gpusense.enable()
    with gpusense.trace("step") as step, host.trace("solve", {"size": 3}):
        pass
    with host.trace("alone"):
        pass
    assert paths(gpusense) == ["step/solve", "step", "alone"]
    record = gpusense.get_tracer().session().blocks[0]
    assert (record.attributes, record.parent_id) == ({"size": 3}, step.block_id)
    assert record.thread == threading.get_ident()


def test_what_a_block_of_a_copy_is_used_for(host):
    """As a decorator, in a generator, in tasks, on threads, inside itself and left by an exception."""

    @host.trace("plain")
    def plain(depth):
        with gpusense.trace("app"):
            return plain(depth - 1) if depth else None

    @host.trace("generator")
    def generator():
        yield 1

    @host.trace
    async def coroutine():
        await asyncio.sleep(0)

    async def main():
        async def one(name):
            with gpusense.trace(name):
                await coroutine()

        await asyncio.gather(one("left"), one("right"))

    gpusense.configure(trace_all=True)
    gpusense.enable()
    plain(1)
    assert list(generator()) == [1]
    asyncio.run(main())
    thread = threading.Thread(target=plain, args=(0,))
    with gpusense.trace("not around it"):
        thread.start()
        thread.join(20)
    block = host.trace("shared")
    with block, block:
        pass
    with pytest.raises(ZeroDivisionError), host.trace("failing"):
        1 / 0  # noqa: B018
    with host.compute_block("work", 7, {"of": "host"}):
        pass
    session = gpusense.get_tracer().session()
    name = coroutine.__qualname__
    assert sorted("/".join(record.path) for record in session.blocks) == sorted(
        [
            *("plain", "plain/app", "plain/app/plain", "plain/app/plain/app", "generator", "generator"),
            *("left", f"left/{name}", "right", f"right/{name}", "not around it", "plain", "plain/app"),
            *("shared", "shared/shared", "failing"),
        ]
    )
    assert [record.error for record in session.blocks if record.name == "failing"] == ["ZeroDivisionError"]
    (work,) = session.compute_blocks
    assert (work.name, work.elements, work.attributes) == ("work", 7, {"of": "host"})
    assert work.end_ns >= work.start_ns


def test_the_copy_goes_on_as_before_when_recording_ends(host):
    gpusense.configure(trace_all=True)
    gpusense.enable()
    with host.trace("recorded"):
        pass
    idle = host.get_tracer()
    assert not idle.active
    for end, again in ((gpusense.disable, gpusense.enable), (gpusense.get_tracer().close, None)):
        with host.trace("open at the end"):
            end()
        assert type(host.trace("after")) is type(idle.open_scope("x"))
        assert host.trace("after") is host.trace("after")  # nothing is made for it
        with host.compute_block("after"):
            pass
        if again is not None:
            again()
            with host.trace("again"):
                pass
    # A block that is open ends with its recording, and not again.
    assert paths(gpusense) == ["recorded", "open at the end", "again", "open at the end"]
    assert not gpusense.get_tracer().session().compute_blocks


def test_a_copy_that_records_for_itself_keeps_its_own(host):
    seen = []
    gpusense.configure(trace_all=True)
    host.configure(sinks=[seen.extend], trace_all=True)
    assert host.enable()
    with host.trace("before"):
        pass
    gpusense.enable()
    with gpusense.trace("step"), host.trace("solve") as block:
        assert host.get_tracer().current_block() is block
    with host.compute_block("work"):
        pass
    block = host.trace("shared")
    with block, block:
        pass
    assert block.summary().name == "shared"
    host.get_tracer().flush()
    assert paths(host) == ["before", "solve", "shared/shared", "shared"]
    assert [record.name for record in seen] == ["before", "solve", "work", "shared", "shared"]
    assert paths(gpusense) == ["step/solve", "step", "shared/shared", "shared"]
    assert [record.name for record in gpusense.get_tracer().session().compute_blocks] == ["work"]
    gpusense.disable()
    with host.trace("after"):
        pass
    assert (paths(host)[-1], paths(gpusense)[-1]) == ("after", "shared")


def test_a_copy_that_is_off_and_then_closed_still_hands_over(host):
    host.enable()
    live = host.get_tracer()
    host.disable()
    live.close()
    gpusense.enable()
    with host.trace("x"):
        pass
    assert paths(gpusense) == ["x"]


def test_who_gets_them_where_several_copies_record(host, other):
    """A run before all; what is installed before a copy in a package; two such copies keep theirs to themselves."""
    assert host.enable()
    with other.trace("of an idle copy"):
        pass
    assert other.enable()
    with other.trace("of its own"), host.trace("of its own"):
        pass
    assert (paths(host), paths(other)) == (["of an idle copy", "of its own"], ["of its own"])
    with gpusense.trace("not recorded by its own copy"):
        pass
    assert paths(host)[-1] == "not recorded by its own copy"
    gpusense.enable()
    with other.trace("a"), host.trace("b"), gpusense.trace("c"):
        pass
    assert paths(gpusense) == ["a/b/c", "a/b", "a"]
    assert (paths(host)[-1], paths(other)[-1]) == ("b", "a")
    run = importlib.import_module("other.extern.sense._tracing.select").control.start_session(mode="live")
    with gpusense.trace("d"), host.trace("e"), other.trace("f"):
        pass
    session = run.finish()
    assert [record.path for record in session.blocks] == [("d", "e", "f"), ("d", "e"), ("d",)]
    with host.trace("g"):
        pass
    assert paths(gpusense)[-2:] == ["d", "g"]


def test_a_copy_that_was_switched_off_hands_over_nothing(host):
    gpusense.enable()
    host.configure(mode="off")
    with host.trace("off"), host.compute_block("off"):
        pass
    host.configure(mode="auto")
    with host.trace("auto"):
        pass
    assert paths(gpusense) == ["auto"]


def test_a_copy_that_is_off_by_the_environment_meets_nobody(host, monkeypatch):
    monkeypatch.setenv("GPUSENSE", "off")
    with host.trace("off"):
        pass
    assert not gpusense.enable()
    assert copies.KEY not in interpreter_dict()


def test_copies_that_say_something_else_are_named(hosts, host):
    old = hosts["old"]
    run = select.control.start_session(mode="live")
    with old.trace("lost"), host.trace("found"):
        pass
    sentence = f"not recorded: blocks of old.sense, whose gpusense {old.__version__} is too old to hand them over"
    assert gpusense.get_tracer().status()["silent_copies"] == [sentence]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["old.sense._tracing.unmet"], "VERSION", copies.VERSION + 1)
        patch.setitem(sys.modules, "old.sense._tracing.copies", sys.modules["old.sense._tracing.unmet"])
        assert "is too new" in gpusense.get_tracer().status()["silent_copies"][0]
    session = run.finish()
    assert session.meta["notes"] == [sentence]
    assert [record.name for record in session.blocks] == ["found"]


def test_a_copy_that_cannot_be_told_stops_nobody(host):
    with host.trace("met"):
        pass

    def look():
        raise ValueError("of a version that is broken")

    interpreter_dict()[copies.KEY]["copies"]["broken"] = look
    assert gpusense.enable()
    with host.trace("seen"):
        pass
    assert paths(gpusense) == ["seen"]


def test_what_interrupts_the_other_copy_is_the_programs(host):
    """An exception that a signal handler raises in there passes, and both blocks end."""
    gpusense.enable()
    host.enable()
    receiver = dict(host.get_tracer()._elsewhere)

    def interrupted(name, attributes):
        enter, leave = made(name, attributes)

        def stop():
            enter()
            raise KeyboardInterrupt

        return stop, leave

    made, receiver["block"] = receiver["block"], interrupted
    host.get_tracer().go_to(receiver)
    with pytest.raises(KeyboardInterrupt), host.trace("cut off"):
        raise AssertionError("not reached")
    assert (paths(host), paths(gpusense)) == (["cut off"], ["cut off"])
    assert host.get_tracer().current_block() is None
    assert gpusense.get_tracer().current_block() is None


def test_copies_that_send_to_each_other_for_a_moment_do_not_go_round(host):
    """As one of them is told before the other that somebody else records."""
    gpusense.enable()
    host.enable()
    back = importlib.import_module("host.sense._tracing.select").control._copies._ours
    gpusense.get_tracer().go_to(back)
    with host.trace("once"):
        pass
    with gpusense.trace("both"):
        pass
    assert paths(gpusense) == ["once", "both"]
    assert paths(host) == ["once", "both"]
