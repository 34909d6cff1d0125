"""Boundaries and blocks as numbers in a file, against the same as rows and records."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.draws import examples

from gpusense._attribution.boundaries import (
    CLOSE,
    ENDED,
    FRAME_ENDED,
    FRAME_FOLLOWED,
    FRAME_OPENED,
    LEAVE,
    OPEN,
    PLACED,
    SWITCH,
    Frame,
    taken_apart,
)
from gpusense.session._block_chunks import HEAD, ROW, Packer, unpacked

T0 = 1_795_814_054_123_456_789
TEXTS = st.one_of(
    st.sampled_from(["step", "forward", "layers.0", ""]), st.text(st.characters(codec="utf-16-le"), max_size=8)
)
ATTRIBUTES = st.one_of(
    st.none(),
    st.just({}),
    st.dictionaries(TEXTS, st.one_of(TEXTS, st.integers(-5, 5), st.booleans()), max_size=2),
    st.just({"long": "x" * 5_000}),
)


class Place:
    """Of a module."""

    def __init__(self, name, attributes):
        self.name = name
        self.attributes = attributes


def frame(number, place, outer, thread, start_ns, corr):
    made = Frame.__new__(Frame)
    made.number, made.place, made.outer, made.block = number, place, outer, None
    made.run, made.start_ns, made.corr = SimpleNamespace(thread=thread), start_ns, corr
    return made


def outermost(number, path, thread):
    made = frame(number, None, None, thread, T0, -1)
    made.block = SimpleNamespace(path=path, block_id=number)
    return made


class Program:
    """What threads leave, made up: blocks, frames in them and switches, each number higher than all before."""

    def __init__(self, draw):
        self.draw = draw
        self.number = 0
        self.now = T0
        self.newest = 0
        self.left = []
        self.places = [Place(draw(TEXTS), draw(ATTRIBUTES)) for _ in range(3)]
        self.open = []

    def later(self):
        self.now += self.draw(st.integers(0, 3))
        self.newest = (self.newest + self.draw(st.integers(0, 2**20))) & 0xFFFFFFFF
        return self.now, self.newest

    def next_number(self):
        self.number += 1
        return self.number

    def block_begins(self):
        now, newest = self.later()
        name, thread = self.draw(TEXTS), self.draw(st.sampled_from([5, 140_000_000_000_000, 2**64 - 1]))
        outer = self.open[-1] if self.open else None
        path = (*(outer["path"] if outer else ()), name)
        number, parent = self.next_number(), outer["number"] if outer else None
        self.left.append((PLACED, OPEN, number, parent, thread, now, name, newest))
        self.open.append({"number": number, "path": path, "thread": thread, "start": now, "parent": parent})

    def block_ends(self):
        if not self.open:
            return
        now, newest = self.later()
        block = self.open.pop()
        here = block["thread"] if self.draw(st.integers(0, 4)) else 6
        leaf, error = (
            self.draw(st.sampled_from([None, None, None, 0, 3])),
            self.draw(st.sampled_from([None, None, "E"])),
        )
        name = block["path"][-1] if self.draw(st.integers(0, 4)) else "renamed"
        self.left.append((
            ENDED, leaf, here, newest, name, block["number"], block["parent"], block["path"], block["start"], now,
            block["thread"], self.draw(ATTRIBUTES), error,
        ))  # fmt: skip

    def siblings(self):
        """Frames inside a block, one after the other, the last ones in one item each; perhaps one around them."""
        if not self.open:
            return
        block = self.open[-1]
        outer = outermost(block["number"], block["path"], block["thread"])
        if self.draw(st.booleans()):
            outer = frame(self.next_number(), self.places[0], outer, block["thread"], *self.later())
            self.left.append((FRAME_OPENED, outer))
        last = None
        for place in self.draw(st.lists(st.sampled_from(self.places), min_size=1, max_size=3)):
            now, newest = self.later()
            made = frame(self.next_number(), place, outer, block["thread"], now, newest)
            self.left.append((FRAME_OPENED, made) if last is None else (FRAME_FOLLOWED, last, now, newest, made))
            last = made
        self.left.append((FRAME_ENDED, last, *self.later()))
        if outer.block is None:
            self.left.append((FRAME_ENDED, outer, *self.later()))

    def task_switches(self):
        now, newest = self.later()
        op, leaf = self.draw(st.sampled_from([(SWITCH, 0), (SWITCH, 2), (SWITCH, None), (LEAVE, 0), (LEAVE, 1)]))
        self.left.append((PLACED, op, 0, leaf, 5, now, "", newest))


@st.composite
def programs(draw):
    program = Program(draw)
    steps = [program.block_begins, program.block_ends, program.siblings, program.task_switches]
    for step in draw(st.lists(st.sampled_from(steps), max_size=12)):
        step()
    return program.left


def as_written(record):
    return record._replace(attributes=None if record.attributes is None else json.loads(json.dumps(record.attributes)))


def in_chunks(left, sizes):
    """What a reader finds where ``left`` came in parts of these sizes; with the records that were not packed."""
    packer, boundaries, records, rest, first = Packer(), [], [], [], 0
    for size in (*sizes, len(left)):
        rest += packer.add(left[first : first + size])
        first += size
        found = unpacked(b"".join(packer.take()), {})
        assert (found.reversed, found.refused, found.reason) == (0, 0, "")
        boundaries += found.boundaries
        records += found.records
    assert not packer
    return boundaries, records, rest


def unusual(item):
    if item[0] != ENDED:
        return False
    _, leaf, here, _, name, _, _, path, _, _, thread, attributes, error = item
    return leaf is not None or here != thread or error or name != path[-1] or "long" in (attributes or {})


@examples(200)
@given(programs(), st.lists(st.integers(0, 4), max_size=4))
def test_a_reader_finds_the_boundaries_and_blocks_that_were_left(left, sizes):
    expected, ended = taken_apart(left)
    boundaries, records, rest = in_chunks(left, sizes)
    # The name of a block that ended is its record's; a reader of boundaries has no use for it.
    assert boundaries == expected
    assert sorted(map(as_written, [*records, *rest]), key=lambda record: record.block_id) == sorted(
        map(as_written, ended), key=lambda record: record.block_id
    )
    assert [record.block_id for record in rest] == [item[5] for item in left if unusual(item)]


def test_equal_blocks_share_their_text():
    packer = Packer()
    outer = outermost(1, ("step",), 5)
    place = Place("layers.0", {"torch.module": "Linear"})
    for i in range(100):
        made = frame(2 + i, place, outer, 5, T0 + i, i)
        assert packer.add([(FRAME_OPENED, made), (FRAME_ENDED, made, T0 + i + 1, i + 1)]) == []
    parts = packer.take()
    assert json.loads(parts[1]) == [[["step", "layers.0"], {"torch.module": "Linear"}]]
    assert sum(map(len, parts)) == 8 + len(parts[1]) + len(parts[2]) + 200 * ROW * 8
    shared = {}
    found = unpacked(b"".join(parts), shared).records
    assert len(found) == 100
    assert all(record.path is found[0].path for record in found)
    assert unpacked(b"".join(parts), shared).records[0].path is found[0].path


def payload(rows, entries='[["step",null],[["step"],null]]'):
    text = entries.encode()
    numbers = [number for row in rows for number in row]
    return b"".join([
        HEAD.pack(len(text), len(rows)), text, bytes(-(8 + len(text)) % 8),
        *(number.to_bytes(8, "little") for number in numbers),
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ((OPEN, 3, 3 + 1, 5, T0, 1, 1, 0), "block 3 is inside block 3, which is not older"),
        ((OPEN, 3, 9 + 1, 5, T0, 1, 1, 0), "block 3 is inside block 9, which is not older"),
        ((7, 3, 0, 5, T0, 1, 1, 0), "no boundary of a block"),
        ((OPEN, 3, 0, 5, T0, 2**32, 1, 0), "no correlation id"),
        ((OPEN, 3, 0, 5, T0, 1, 3, 0), "list index out of range"),
        ((CLOSE, 3, 0, 5, T0, 1, 1, T0 - 5), "a block without a path"),
        ((CLOSE, 3, 0, 5, T0, 1, 0, T0 - 5), "a block without a path"),
    ],
)
def test_a_row_that_no_tracer_writes_costs_itself_alone(row, reason):
    good = (OPEN, 2, 0, 5, T0, 1, 1, 0), (CLOSE, 2, 0, 5, T0 + 7, 2, 2, T0)
    found = unpacked(payload([good[0], row, good[1]]), {})
    assert (found.refused, found.reason) == (1, reason)
    assert [boundary[1:3] for boundary in found.boundaries] == [(OPEN, 2), (CLOSE, 2)]
    assert [(record.path, record.start_ns, record.end_ns) for record in found.records] == [(("step",), T0, T0 + 7)]


def test_a_block_that_ends_before_it_begins_is_counted_and_ends_all_the_same():
    found = unpacked(payload([(CLOSE, 2, 0, 5, T0, 2, 2, T0 + 1)]), {})
    assert (found.reversed, found.refused, found.records) == (1, 0, [])
    assert [boundary[1:3] for boundary in found.boundaries] == [(CLOSE, 2)]


@pytest.mark.parametrize(
    "entries", ["{}", "[1]", "[[1,null]]", "[[[],null]]", "[[[1],null]]", '[["a",[]]]', '[["a"]]', "[", "[" * 9_000]
)
def test_entries_that_are_none_are_refused_as_a_whole(entries):
    with pytest.raises(ValueError, match=r"\w"):
        unpacked(payload([], entries), {})


@examples(300)
@given(st.binary(max_size=200), st.integers(0, 200), st.integers(0, 255))
def test_damaged_payloads_raise_value_error_alone(noise, at, byte):
    whole = bytearray(payload([(OPEN, 2, 0, 5, T0, 1, 1, 0), (CLOSE, 2, 0, 5, T0 + 7, 2, 2, T0)]))
    whole[at % len(whole)] = byte
    for data in (bytes(whole), noise, bytes(whole[: at % len(whole)])):
        try:
            found = unpacked(data, {})
        except ValueError:
            continue
        assert len(found.boundaries) + found.refused <= 2
