"""Kernel names: what people read in a table, from whatever the driver gives."""

import sys

import pytest

from gpusense._capi import demangle as demangling
from gpusense._capi.demangle import demangle
from gpusense._decode.labels import label
from gpusense._decode.names import NameCache, Names

# --- the runtime's demangler --------------------------------------------------------------------------------------

needs_runtime = pytest.mark.skipif(sys.platform == "win32", reason="no Itanium names there")


@pytest.fixture
def fresh(monkeypatch):
    monkeypatch.setattr(demangling, "_cache", {})
    monkeypatch.setattr(demangling, "_functions", None)
    monkeypatch.setattr(demangling, "_look_at", 0.0)


@needs_runtime
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("_Z5saxpyifPKfPf", "saxpy(int, float, float const*, float*)"),
        ("_ZN12_GLOBAL__N_14fillEPf", "(anonymous namespace)::fill(float*)"),
        ("_Z1kIiEvT_", "void k<int>(int)"),
        ("saxpy", None),
        ("", None),
        ("_Z", None),
        ("_Z99short", None),
        ("_Z5saxpy\0hidden", None),
        ("_Zé", None),
        ("_Z1k" + "P" * 70000 + "i", None),
    ],
)
def test_demangle(fresh, name, expected):
    assert demangle(name, may_load=True) == expected


@needs_runtime
def test_demangled_names_are_kept_within_bounds(fresh, monkeypatch):
    monkeypatch.setattr(demangling, "_CACHE_SIZE", 4)
    for n in range(10, 20):
        assert demangle(f"_Z3k{n}v", may_load=True) == f"k{n}()"
        assert len(demangling._cache) <= 4
    assert demangle("_Z3k19v") == "k19()"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/statm")
def test_answers_are_freed(run_python):
    code = """if True:
        from gpusense._capi import demangle
        demangle._CACHE_SIZE = 1
        name = "_Z900" + "k" * 900
        def resident_bytes():
            return int(open("/proc/self/statm").read().split()[1]) * 4096
        def work(count):
            for n in range(count):
                assert demangle.demangle(f"{name}{'P' * (n % 7)}i", may_load=True)
        work(1000)
        before = resident_bytes()
        work(40000)
        assert resident_bytes() - before < 16_000_000, (before, resident_bytes())
    """
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_without_a_runtime_names_stay_raw(fresh, monkeypatch):
    monkeypatch.setattr(demangling, "load", lambda *_, **__: demangling.CPP_RUNTIME and None)
    assert demangle("_Z5saxpyi") is None
    assert label("_Z5saxpyi") == "saxpy"


def test_no_runtime_is_brought_in_unasked(fresh, monkeypatch):
    asked = []
    monkeypatch.setattr(demangling, "load", lambda row, only_mapped: asked.append(only_mapped))
    demangle("_Z1kv")
    demangle("_Z1kv", may_load=True)
    assert asked == [True, False]


def test_a_runtime_that_is_missing_is_not_looked_for_at_every_name(fresh, monkeypatch):
    asked = []
    now = [100.0]
    monkeypatch.setattr(demangling, "load", lambda *_, **__: asked.append(1))
    monkeypatch.setattr(demangling, "monotonic", lambda: now[0])
    for n in range(50):
        assert demangle(f"_Z3k{n:02}v") is None
    assert len(asked) == 1
    now[0] += 1.5
    demangle("_Z1kv")
    assert len(asked) == 2


@needs_runtime
def test_names_become_readable_once_there_is_a_runtime(fresh, monkeypatch):
    real = demangling.load
    monkeypatch.setattr(demangling, "load", lambda *_, **__: None)
    cache = NameCache(demangling)

    def resolve(now_s, pointer=1):
        cache.new_buffer(now_s)
        return cache.resolve(pointer, lambda _: b"_Z1kIiEvT_")

    assert resolve(10.0) == ("k", "_Z1kIiEvT_", "_Z1kIiEvT_")
    monkeypatch.setattr(demangling, "load", lambda row, **_: real(row))
    monkeypatch.setattr(demangling, "_look_at", 0.0)
    assert resolve(12.0)[0] == "k"  # nobody has looked since
    demangle("_Z5otheri")
    assert resolve(12.5)[0] == "k"  # kept for a second
    assert resolve(14.0) == ("k<int>", "void k<int>(int)", "_Z1kIiEvT_")


def test_the_names_of_the_same_kernels_are_looked_up_once_and_read_again_after_a_second():
    texts, reads = {0x100: b"one", 0x140: b"two"}, []

    def read(pointer):
        reads.append(pointer)
        return texts[pointer]

    cache = NameCache(demangling)
    names, both = Names(cache, read), frozenset(texts)
    cache.new_buffer(1.0)
    known, short = names.many(both)
    assert short == {0x100: ("one", None), 0x140: ("two", None)}
    assert short == {pointer: found[:2] for pointer, found in known.items()}
    cache.new_buffer(1.5)
    assert names.many(both)[0] is known
    assert names.many(frozenset([0x100]))[1] == {0x100: ("one", None)}
    assert len(reads) == 2
    texts[0x100] = b"other"  # its module was unloaded, and another came to its place
    cache.new_buffer(1.9)
    assert names.many(both)[1] == short
    cache.new_buffer(2.1)
    assert names.many(both)[1] == {0x100: ("other", None), 0x140: ("two", None)}
    assert names(0x100)[0] == "other"


def test_a_name_whose_text_has_changed_is_read_again_at_once():
    texts, reads = {0x100: b"one", 0x140: b"two", 0x180: b"three"}, []

    def read(pointer):
        reads.append(pointer)
        return texts[pointer]

    def glance(known):
        return lambda: all(texts[pointer] == text for pointer, text in known.items())

    names = Names(NameCache(demangling), read, glance)
    names.cache.new_buffer(1.0)
    both, more = frozenset([0x100, 0x140]), frozenset(texts)
    assert names.many(both)[1] == {0x100: ("one", None), 0x140: ("two", None)}
    texts[0x100] = b"other"
    assert names.many(more)[1] == {0x100: ("other", None), 0x140: ("two", None), 0x180: ("three", None)}
    texts[0x140] = b"third"
    for some in (both, more, both):
        assert names.many(some)[1][0x140] == ("third", None)
    assert names(0x140)[0] == "third"
    reads.clear()
    assert names.many(both) is names.many(both)
    assert not reads
