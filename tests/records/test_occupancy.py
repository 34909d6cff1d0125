"""Theoretical occupancy: known answers, and a second model that fills a multiprocessor block by block."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusense._records.occupancy import Limits, blocks_per_sm, occupancy, of_kernel
from gpusense._records.records import DeviceInfo, GpuKernel

KIB = 1024


def device(capability, threads, shared, registers=65536, details=()) -> DeviceInfo:
    return DeviceInfo(
        0,
        "a GPU",
        "nvidia",
        "cuda",
        compute_capability=capability,
        threads_per_sm=threads,
        registers_per_sm=registers,
        shared_memory_per_sm_bytes=shared,
        details=details,
    )


# Multiprocessors as the CUDA C++ Programming Guide lists them under "Compute Capabilities".
CARDS = {
    (5, 0): device((5, 0), 2048, 64 * KIB),
    (5, 3): device((5, 3), 2048, 64 * KIB),
    (6, 0): device((6, 0), 2048, 64 * KIB),
    (6, 1): device((6, 1), 2048, 96 * KIB),
    (7, 0): device((7, 0), 2048, 96 * KIB),
    (7, 5): device((7, 5), 1024, 64 * KIB),
    (8, 0): device((8, 0), 2048, 164 * KIB),
    (8, 6): device((8, 6), 1536, 100 * KIB),
    (8, 9): device((8, 9), 1536, 100 * KIB),
    (9, 0): device((9, 0), 2048, 228 * KIB),
    (10, 0): device((10, 0), 2048, 228 * KIB),
    (12, 0): device((12, 0), 1536, 100 * KIB),
}
LIMITS = {capability: Limits.of(card) for capability, card in CARDS.items()}


@pytest.mark.parametrize(
    ("capability", "threads", "registers", "shared", "blocks", "share"),
    [
        ((9, 0), 256, 32, 0, 8, 1.0),  # threads bound
        ((9, 0), 32, 16, 0, 32, 0.5),  # blocks bound
        ((9, 0), 256, 33, 0, 6, 0.75),  # 33 registers cost as much as 40
        ((9, 0), 256, 255, 0, 1, 0.125),
        ((9, 0), 1024, 64, 0, 1, 0.5),
        ((9, 0), 1024, 65, 0, 0, 0.0),  # more registers than a block may have
        ((9, 0), 128, 32, 100 * KIB, 2, 0.125),  # shared memory bound, with 1 KiB of overhead
        ((9, 0), 128, 32, 113 * KIB, 2, 0.125),
        ((9, 0), 128, 32, 113 * KIB + 1, 1, 0.0625),
        ((8, 0), 128, 32, 0, 16, 1.0),
        ((8, 6), 128, 32, 0, 12, 1.0),
        ((8, 6), 64, 32, 0, 16, 32 / 48),
        ((8, 9), 64, 32, 0, 24, 1.0),
        ((7, 5), 128, 64, 0, 8, 1.0),
        ((7, 5), 32, 32, 0, 16, 0.5),
        ((7, 0), 128, 32, 48 * KIB, 2, 0.125),  # no reserve before 8.0
        ((6, 1), 128, 32, 48 * KIB, 2, 0.125),
        ((5, 3), 1024, 32, 0, 2, 1.0),  # exactly the 32768 registers a block has there
        ((5, 3), 1024, 33, 0, 0, 0.0),
        ((6, 0), 96, 88, 0, 7, 21 / 64),  # two schedulers: 11 warps each
        ((6, 1), 96, 88, 0, 6, 18 / 64),  # four schedulers: 5 warps each
        ((12, 0), 1, 1, 0, 24, 0.5),
        ((9, 0), 1, 0, 0, 32, 0.5),
    ],
)
def test_known_answers(capability, threads, registers, shared, blocks, share):
    limits = LIMITS[capability]
    assert blocks_per_sm(limits, threads, registers, shared) == blocks
    assert blocks_per_sm(limits, threads, registers, 0, shared) == blocks
    assert occupancy(limits, threads, registers, shared) == share


@pytest.mark.parametrize(("threads", "registers"), [(0, 32), (-1, 32), (1025, 32), (32, 256)])
def test_launches_that_cannot_start(threads, registers):
    assert occupancy(LIMITS[9, 0], threads, registers) == 0.0


def test_more_shared_memory_than_a_block_may_have():
    limits = Limits.of(CARDS[9, 0]._replace(details=(("shared_memory_per_block_optin_bytes", "232448"),)))
    assert blocks_per_sm(limits, 128, 32, 232448) == 1
    assert blocks_per_sm(limits, 128, 32, 232449) == 0


def test_what_the_driver_says_goes_before_the_table():
    details = (
        ("blocks_per_sm", "7"),
        ("registers_per_block", "100"),
        ("reserved_shared_memory_per_block_bytes", "0"),
        ("threads_per_block", "64"),
        ("l2_cache_bytes", "52428800"),
        ("odd", "not a number"),
    )
    limits = Limits.of(CARDS[9, 0]._replace(details=details))
    assert limits.blocks_per_sm == 7
    assert limits.registers_per_block == 100
    assert limits.reserved_shared_memory_per_block_bytes == 0
    assert limits.threads_per_block == 64


@pytest.mark.parametrize(
    "field", ["compute_capability", "threads_per_sm", "registers_per_sm", "shared_memory_per_sm_bytes"]
)
def test_too_little_known(field):
    assert Limits.of(CARDS[9, 0]._replace(**{field: None})) is None


def test_of_a_recorded_launch():
    launch = GpuKernel(
        "k", 0, 1, block=(16, 16, 1), registers_per_thread=33, static_shared_bytes=0, dynamic_shared_bytes=0
    )
    limits = LIMITS[9, 0]
    assert of_kernel(launch, limits) == 0.75
    assert of_kernel(launch._replace(static_shared_bytes=60 * KIB, dynamic_shared_bytes=53 * KIB), limits) == 0.25
    assert of_kernel(launch._replace(static_shared_bytes=None, dynamic_shared_bytes=None), limits) == 0.75
    assert of_kernel(launch, None) is None
    assert of_kernel(launch._replace(block=None), limits) is None
    assert of_kernel(launch._replace(registers_per_thread=None), limits) is None
    assert of_kernel(launch._replace(block=(2048, 1, 1)), limits) is None  # it ran, so the limit is wrong


def fill(limits: Limits, threads: int, registers: int, shared: int) -> int:
    """Places blocks one after another, warp by warp into the scheduler with most room, until one does not fit."""
    units = -(-registers * 32 // 256)
    warps = -(-threads // 32)
    parts = [limits.registers_per_sm // 256 // (2 if limits.compute_capability == (6, 0) else 4)] * (
        2 if limits.compute_capability == (6, 0) else 4
    )
    step = 128 if limits.compute_capability >= (8, 0) else 256
    need = -(-(shared + limits.reserved_shared_memory_per_block_bytes) // step) * step
    room, free_warps, placed = limits.shared_memory_per_sm_bytes, limits.threads_per_sm // 32, 0
    while placed < limits.blocks_per_sm and room >= need and free_warps >= warps:
        for _ in range(warps):
            best = max(range(len(parts)), key=parts.__getitem__)
            if parts[best] < units:
                return placed
            parts[best] -= units
        room, free_warps, placed = room - need, free_warps - warps, placed + 1
    return placed


launches = st.tuples(st.integers(1, 1024), st.integers(1, 255), st.integers(0, 48 * KIB))


@given(st.sampled_from(sorted(LIMITS)), launches)
def test_same_as_filling_a_multiprocessor(capability, launch):
    threads, registers, shared = launch
    limits = LIMITS[capability]
    warps = -(-threads // 32)
    if -(-registers * 32 // 256) * 256 * warps > limits.registers_per_block:
        assert blocks_per_sm(limits, threads, registers, shared) == 0
    else:
        assert blocks_per_sm(limits, threads, registers, shared) == fill(limits, threads, registers, shared)


@given(st.sampled_from(sorted(LIMITS)), launches, st.integers(0, 64), st.integers(0, 4096))
def test_more_of_anything_never_helps(capability, launch, more_registers, more_shared):
    threads, registers, shared = launch
    limits = LIMITS[capability]
    share = occupancy(limits, threads, registers, shared)
    assert 0.0 <= share <= 1.0
    assert occupancy(limits, threads, registers + more_registers, shared) <= share
    assert occupancy(limits, threads, registers, shared, more_shared) <= share
