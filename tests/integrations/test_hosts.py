"""A host is as it was after its instrumentation, but for what others have put over it since."""

import types

import gpusense
from gpusense.integrations import _hosts


def host():
    made = types.SimpleNamespace(limit=3)
    made.run = lambda: "run"
    return made


def doubled(original):
    return lambda: original() * 2


def test_what_was_replaced_comes_back():
    owner, patches = host(), _hosts.Patches()
    before = dict(vars(owner))
    wrapper = patches.wrap(owner, "run", doubled)
    assert owner.run is wrapper
    assert (owner.run(), owner.run._gpusense_original) == ("runrun", before["run"])
    assert patches.wrap(owner, "absent", doubled) is None
    patches.put(owner, "limit", 4)
    patches.put(owner, "new", 5)
    patches.put(owner, "limit", 6)
    assert (owner.limit, owner.new) == (6, 5)
    patches.undo()
    assert vars(owner) == before
    patches.undo()
    assert vars(owner) == before


def test_what_a_subclass_inherits_is_not_left_in_it():
    class Base:
        def run(self):
            return "run"

    class Derived(Base):
        pass

    patches = _hosts.Patches()
    patches.wrap(Derived, "run", lambda original: lambda self: original(self) * 2)
    assert Derived().run() == "runrun"
    patches.undo()
    assert "run" not in vars(Derived)


def test_what_others_put_over_ours_stays():
    owner, patches = host(), _hosts.Patches()
    ours = patches.wrap(owner, "run", doubled)
    owner.run = theirs = doubled(ours)
    patches.undo()
    assert owner.run is theirs
    assert owner.run() == "run" * 4


def test_what_somebody_else_took_from_us_is_put_right():
    owner, other, patches = host(), types.SimpleNamespace(), _hosts.Patches()
    original = owner.run
    other.copy = patches.wrap(owner, "run", doubled)
    patches.undo_too(other, "copy", owner.run, original)
    patches.undo()
    assert (owner.run, other.copy) == (original, original)


def test_one_instrumentation_is_undone_once():
    installed = _hosts.Installed[str]()
    assert (installed.now, installed.take()) == (None, None)
    installed.now = "it"
    assert [installed.take(), installed.take(), installed.now] == ["it", None, None]


def test_why_there_is_nothing_to_instrument(tracer):
    assert _hosts.unless_recording("acme") is None
    gpusense.disable()
    nothing = _hosts.unless_recording("acme")
    assert not nothing
    assert str(nothing).startswith("acme: recording is disabled")
    gpusense.enable()


def test_blocks_are_those_of_the_active_tracer(tracer):
    failed, fine = _hosts.open_block("outer"), _hosts.open_block("inner", {"size": 1})
    _hosts.close_block(fine)
    _hosts.close_block(failed, ValueError("no"))
    blocks = {block.name: block for block in tracer.session().blocks}
    assert blocks["inner"].path == ("outer", "inner")
    assert (blocks["inner"].attributes, blocks["inner"].error) == ({"size": 1}, None)
    assert "ValueError" in blocks["outer"].error


def test_a_host_that_is_still_being_imported_is_not_there(monkeypatch):
    made = types.ModuleType("acme")
    made.__spec__ = types.SimpleNamespace(_initializing=True)
    monkeypatch.setitem(_hosts.sys.modules, "acme", made)
    made.last = 1
    assert not _hosts.imported("acme", "last")
    made.__spec__._initializing = False
    assert _hosts.imported("acme", "last")
    assert not _hosts.imported("acme", "later")
    assert not _hosts.imported("nobody", "last")
