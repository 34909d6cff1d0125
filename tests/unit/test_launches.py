"""How much launches are slowed is told from records alone."""

import random

import pytest
from cupti_bytes import STRIDES, T0, kernel, memcpy

from gpusense._launches import FURTHER_NS, LAUNCH_NS, slowed_ns


@pytest.mark.parametrize("seed", range(5))
def test_each_launch_counts_once_and_each_further_node_a_little(seed):
    source = random.Random(seed)
    raw, launches, records = [], source.randrange(1, 200), 0
    for number in range(launches):
        for _ in range(source.choice((1, 1, 1, 24))):
            make = kernel if source.random() < 0.8 else memcpy
            raw.append(make(T0, T0 + 100, 1000 + number))
            records += 1
    source.shuffle(raw)
    found = slowed_ns(memoryview(b"".join(raw)), STRIDES)
    # A launch whose nodes are of two kinds counts with each.
    assert launches * LAUNCH_NS + (records - launches) * FURTHER_NS <= found <= records * LAUNCH_NS


def test_kernels_of_one_graph_and_of_many_launches():
    one = memoryview(b"".join(kernel(T0, T0 + 100, 7) for _ in range(24)))
    assert slowed_ns(one, STRIDES) == LAUNCH_NS + 23 * FURTHER_NS
    many = memoryview(b"".join(kernel(T0, T0 + 100, 7 + i) for i in range(24)))
    assert slowed_ns(many, STRIDES) == 24 * LAUNCH_NS


def test_any_bytes():
    source = random.Random(3)
    for _ in range(200):
        assert slowed_ns(memoryview(source.randbytes(source.randrange(0, 5000))), STRIDES) >= 0
