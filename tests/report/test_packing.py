"""Packed columns are the same numbers, in few bytes."""

import random
from array import array

import pytest
from support.pages import unpacked

from gpusense.report.html.packing import packed

RNG = random.Random(5)
COLUMNS = {
    "nothing": [],
    "zeros": [0] * 50,
    "small": [RNG.randrange(256) for _ in range(5_000)],
    "one large": [*[7] * 300, 2**52, *[7] * 300],
    "all large": [RNG.randrange(2**53) for _ in range(100)],
    "edges": [edge + by for edge in (2**8, 2**16, 2**32) for by in (-1, 0, 1) for _ in range(40)],
    "slowly": [10**12 + at // 9 for at in range(2_000)],
    "up and down": [10**9 + 40 * (at % 2) for at in range(2_000)],
    "one": [3],
    "of 63 bits": [2**63 - 1, 0, 2**62, 5],
}


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("name", COLUMNS)
def test_a_packed_column_is_the_same_numbers(name, alike):
    values = array("q", COLUMNS[name])
    data, shape = packed(values, alike=alike)
    assert unpacked(data, 0, shape, len(values)) == (values.tolist(), len(data))
    assert values.tolist() == COLUMNS[name]  # which is left alone


def test_random_columns_come_back():
    for _ in range(200):
        bits = [RNG.choice((1, 7, 9, 15, 17, 31, 33, 52)) for _ in range(RNG.randrange(1, 4))]
        values = array("q", [RNG.getrandbits(RNG.choice(bits)) for _ in range(RNG.randrange(1, 200))])
        data, shape = packed(values, alike=RNG.random() < 0.5)
        assert unpacked(data, 0, shape, len(values)) == (values.tolist(), len(data))


def test_it_takes_the_fewest_bytes():
    sizes = {name: len(packed(array("q", values), alike=True).data) for name, values in COLUMNS.items()}
    assert (sizes["nothing"], sizes["zeros"], sizes["small"]) == (0, 0, 5_000)
    assert sizes["one large"] <= 3 * (2 + 8)  # where it changes, and to what
    assert sizes["all large"] == 700
    assert sizes["slowly"] < 500 < sizes["up and down"] <= 2_000 + 12  # as differences
