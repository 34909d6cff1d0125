"""A record's kind, found by a few of its words, is that of the record read whole."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cupti import STRIDES, T0, kernel, marker, memcpy, sync, view
from support.draws import examples

from gpusense._decode import kinds
from gpusense._decode.kinds import Kinds
from gpusense._decode.record import record
from gpusense._decode.walk import batches
from gpusense._records.work import WorkTable, kind_of_record

NAMES = {pointer: (f"k{pointer:x}", f"k{pointer:x}(int)", None) for pointer in range(0x100, 0x104)}
LINES, OWNERS = (None, "train.py:3 step", "train.py:9 step"), (None, ("capture",), ("capture", "inner"))


def some(source, number):
    at = {"start": T0 + number * 100, "end": T0 + number * 100 + 50, "correlation": number + 1}
    place = {"stream": source.choice((7, 8)), "device": source.choice((0, 0, 1))}
    which = source.random()
    if which < 0.6:
        shape = {"block": source.choice(((128, 1, 1), (64, 2, 1))), "registers": source.choice((16, 32))}
        return kernel(**at, **place, **shape, name=source.choice(list(NAMES)), context=source.choice((1, 1, 2)))
    if which < 0.9:
        return memcpy(**at, **place, copy=source.choice((1, 2, 8)), kinds=source.choice(((1, 3), (2, 3), (3, 1))))
    return sync(**at, stream=place["stream"], kind=source.choice((1, 3)))


def check(found, buffer, thread, names=NAMES, extra=None):
    for batch in batches(buffer, STRIDES)[0]:
        lines, owners = ([source[i % 3] for i in range(batch.count)] for source in (LINES, OWNERS))
        numbers = found.of(
            buffer, batch, thread, names.__getitem__, lines if extra else None, owners if extra else None
        )
        assert numbers is not None
        for i, number in enumerate(numbers):
            whole = kind_of_record(record(buffer, batch, i, names.__getitem__))._replace(thread=thread or None)
            if extra:
                whole = whole._replace(source_line=lines[i], owner=owners[i])
            assert found.table.kinds[number] == whole


@given(st.integers(0, 10**6), st.lists(st.tuples(st.integers(0, 60), st.integers(0, 2), st.booleans()), max_size=4))
@examples(80)
def test_each_record_has_the_kind_of_the_record_read_whole(seed, buffers):
    source, found = random.Random(seed), Kinds(WorkTable())
    for count, thread, extra in buffers:
        check(found, view(*(some(source, number) for number in range(count))), thread, extra=extra)
    assert len(set(found.table.kinds)) == len(found.table.kinds)


@given(
    st.integers(0, 10**6),
    st.lists(st.tuples(st.integers(1, 40), st.integers(13, 90), st.booleans()), max_size=12),
    st.integers(8, 200),
)
@examples(40)
def test_a_loop_whose_kinds_are_found_a_batch_at_a_time(seed, drawn, back):
    """Buffers end anywhere in a step; now and then steps become others, or something else runs."""
    source, found, step, at = random.Random(seed), Kinds(WorkTable()), [1, 2], 0
    before, kinds._BACK = kinds._BACK, back
    try:
        for length, count, stays in drawn:
            if not stays:
                step, at = [source.randrange(8) for _ in range(length)], 0
            records = []
            for _ in range(count):
                which = step[at % len(step)] if source.random() < 0.999 else source.randrange(8)
                shape = {"name": list(NAMES)[which % 4], "block": (32 << which // 4, 1, 1), "device": 0}
                records.append(kernel(T0 + at * 100, T0 + at * 100 + 50, at + 1, **shape))
                at += 1
            check(found, view(*records), 5)
    finally:
        kinds._BACK = before


def test_kinds_of_a_loop_are_looked_up_only_until_it_is_known(monkeypatch):
    found, looked_up = Kinds(WorkTable()), []
    original = Kinds._looked_up
    monkeypatch.setattr(Kinds, "_looked_up", lambda *given: looked_up.append(1) or original(*given))
    found.know(NAMES)
    for first in range(0, 60 * 37, 60):
        names = (list(NAMES)[at % 7 % 4] for at in range(first, first + 60))
        check(found, view(*(kernel(T0 + at, T0 + at, at + 1, name=name, device=0) for at, name in enumerate(names))), 5)
    assert len(looked_up) == 2
    found.know(dict.fromkeys(NAMES, ("other", None, None)))
    check(found, view(*(kernel(T0, T0 + 5, 1, name=0x100, device=0) for _ in range(60))), 5, found._names)
    assert found.table.kinds[-1].name == "other"


def test_an_address_that_comes_to_mean_another_kernel_names_that_from_then_on():
    buffer, found = view(kernel(T0, T0 + 50, 1, name=0x100)), Kinds(WorkTable())
    for name in ("before", "after"):
        names = {0x100: (name, None, None)}
        found.know(names)
        check(found, buffer, 5, names)
    assert [kind.name for kind in found.table.kinds] == ["before", "after"]


def test_what_is_remembered_is_bounded_and_what_was_found_stays_true(monkeypatch):
    monkeypatch.setattr(kinds, "_MAX_KNOWN", 4)
    source, found = random.Random(1), Kinds(WorkTable())
    for thread in range(30):
        check(found, view(*(some(source, number) for number in range(20))), thread)
        assert sum(map(len, found._known.values())) <= 4 + 20


@pytest.mark.parametrize("raw", [marker(T0, 1, 5)])
def test_calls_have_no_row(raw):
    (batch,) = batches(view(raw), STRIDES)[0]
    assert Kinds(WorkTable()).of(view(raw), batch, 5, NAMES.__getitem__) is None
