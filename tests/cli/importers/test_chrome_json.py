"""The reader of Chrome traces: any JSON in pieces of any size against ``json.loads``, cut and hostile text."""

import gzip
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.draws import examples

from gpusense.cli.importers import chrome_json
from gpusense.cli.importers.chrome_json import Damaged, texts, values

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def found(text, piece=1 << 20):
    """What is read where each reading gives ``piece`` characters."""
    return list(values(pieces(text, piece)))


def pieces(text, size):
    return (text[at : at + size] for at in range(0, len(text), size))


@examples(200)
@given(st.dictionaries(st.text(max_size=4), plain, max_size=3), st.lists(plain, max_size=4), st.integers(1, 20))
def test_every_value_of_any_trace_in_pieces_of_any_size(members, events, piece):
    members.pop("traceEvents", None)
    text = json.dumps({**members, "traceEvents": events, "last": 7}, indent=piece % 3 or None)
    whole = json.loads(text, parse_float=str)
    rows = found(text, piece)
    assert [value for name, value in rows if name == "traceEvents"] == whole.pop("traceEvents")
    assert {name: value for name, value in rows if name != "traceEvents"} == whole
    assert [value for _, value in found(json.dumps(events), piece)] == json.loads(json.dumps(events), parse_float=str)


def test_documents_one_after_the_other():
    assert found('{"traceEvents":[1]}\n{"traceEvents":[2]}\n[3]') == [
        ("traceEvents", 1),
        ("traceEvents", 2),
        ("traceEvents", 3),
    ]


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_of_text_that_is_cut_all_whole_values_are_read(piece):
    text = json.dumps({"a": 1, "traceEvents": [{"n": 10 * number} for number in range(9)]})
    for end in range(len(text)):
        rows = []
        try:
            rows.extend(values(pieces(text[:end], piece)))
        except Damaged:
            pass
        else:
            assert not end
        assert rows == found(text)[: len(rows)]
        assert len(rows) >= text[:end].count("}")


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "{1:2}",
        '{"a" 1}',
        '{"traceEvents":[}',
        "[" * 100_000,
        '{"a":' * 100_000,
        "[1",
        '{"traceEvents":[' + "9" * 5000,
        "{,,",
    ],
)
def test_what_is_no_json_is_refused(text):
    with pytest.raises(Damaged):
        found(text)


def test_a_value_without_end_is_given_up(monkeypatch):
    monkeypatch.setattr(chrome_json, "_LONGEST", 1000)
    read = []

    def endless():
        yield '["'
        while True:
            read.append(1)
            yield "a" * 100

    with pytest.raises(Damaged):
        list(values(endless()))
    assert len(read) < 50


@pytest.mark.parametrize("cut", [1, 2, 3, 1000, 3000])
def test_of_a_packed_file_that_is_cut_all_is_read_that_comes_before(cut):
    data = json.dumps([f"{number}" for number in range(50_000)]).encode()
    packed = gzip.compress(data[:100_000]) + gzip.compress(data[100_000:])
    assert "".join(texts(io.BytesIO(packed))).encode() == data
    read = []
    with pytest.raises(Damaged):
        read.extend(texts(io.BytesIO(packed[:-cut])))  # a list takes each as it comes
    assert data.decode().startswith("".join(read))
    assert sum(map(len, read)) > 100_000


def test_a_byte_that_stands_for_many_is_unpacked_in_pieces():
    packed = gzip.compress(b" " * (20 << 20) + b"[]")
    assert max(map(len, texts(io.BytesIO(packed)))) <= 1 << 20


def test_damage_in_a_packed_file_is_told():
    packed = bytearray(gzip.compress(json.dumps(list(range(9000))).encode()))
    packed[5000] ^= 0xFF
    with pytest.raises(Damaged, match="unpacked"):
        list(texts(io.BytesIO(bytes(packed))))
