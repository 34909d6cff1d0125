"""Vulkan's structures against vulkan_core.h, and its facts and clock on a real driver."""

import ctypes
import os
import pathlib
import subprocess
import time

import pytest

from gpusense._capi import vulkan as capi
from gpusense.backends.wgpu import vulkan

HEADER = pathlib.Path("/usr/include/vulkan/vulkan_core.h")


def test_layouts_equal_the_header(compiler: list[str], tmp_path: pathlib.Path) -> None:
    if not HEADER.exists():
        if os.environ.get("CI"):
            pytest.fail("CI must have libvulkan-dev")
        pytest.skip("needs libvulkan-dev")
    ours, body = [], []
    for kind in capi.STRUCTURES:
        name = kind.__name__
        ours.append(f"{name} {ctypes.sizeof(kind)}")
        body.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for field in kind._fields_:
            ours.append(f"{name}.{field[0]} {getattr(kind, field[0]).offset}")
            body.append(f'printf("{name}.{field[0]} %zu\\n", offsetof({name}, {field[0]}));')
    ours.append(f"period {capi.TIMESTAMP_PERIOD_OFFSET}")
    body.append('printf("period %zu\\n", offsetof(VkPhysicalDeviceLimits, timestampPeriod));')
    constants = {
        "VK_STRUCTURE_TYPE_APPLICATION_INFO": capi.S_APPLICATION_INFO,
        "VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO": capi.S_INSTANCE_CREATE_INFO,
        "VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO": capi.S_DEVICE_QUEUE_CREATE_INFO,
        "VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO": capi.S_DEVICE_CREATE_INFO,
        "VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2": capi.S_PROPERTIES_2,
        "VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2": capi.S_MEMORY_PROPERTIES_2,
        "VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES": capi.S_ID_PROPERTIES,
        "VK_STRUCTURE_TYPE_CALIBRATED_TIMESTAMP_INFO_EXT": capi.S_CALIBRATED_TIMESTAMP_INFO,
        "VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PCI_BUS_INFO_PROPERTIES_EXT": capi.S_PCI_BUS_INFO,
        "VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT": capi.S_MEMORY_BUDGET,
        "VK_TIME_DOMAIN_CLOCK_MONOTONIC_EXT": capi.TIME_DOMAIN_CLOCK_MONOTONIC,
        "VK_API_VERSION_1_1": capi.API_VERSION,
    }
    for name, number in constants.items():
        ours.append(f"{name} {number}")
        body.append(f'printf("{name} %zu\\n", (size_t){name});')
    source, program = tmp_path / "layout.c", tmp_path / "layout"
    head = ["#include <stddef.h>", "#include <stdio.h>", "#include <vulkan/vulkan_core.h>", "int main(void) {"]
    source.write_text("\n".join([*head, *body, "}"]))
    done = subprocess.run(
        [*compiler, "-I", str(HEADER.parent.parent), "-o", str(program), str(source)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert ours == subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout.splitlines()


def test_facts_of_a_real_driver(driver: None) -> None:
    cards = vulkan.cards()
    assert cards, cards
    card = cards[0]
    assert card.name
    assert card.timestamp_period_ns > 0
    assert card.heaps
    assert card.heaps[0].size_bytes > 1 << 20
    assert all((heap.budget_bytes is None) == (heap.usage_bytes is None) for heap in card.heaps)
    assert vulkan.matching(cards, card.vendor_id, card.device_id, card.name) == (card,)
    assert vulkan.matching(cards, card.vendor_id, card.device_id, "driver's other name for it") == (card,)
    assert vulkan.matching(cards, 1, 2, card.name) == ()


def test_calibrated_readings_lie_between_two_looks_at_the_clock(driver: None) -> None:
    cards = vulkan.cards()
    assert cards
    card = cards[0]
    if not card.calibrated:
        pytest.skip("this driver has no VK_EXT_calibrated_timestamps")
    clock = vulkan.calibrator(card.vendor_id, card.device_id, card.name)
    assert isinstance(clock, vulkan.Calibrator), clock
    try:
        before = time.time_ns()
        samples = [clock.sample() for _ in range(20)]
        after = time.time_ns()
        for sample in samples:
            assert sample is not None
            assert before - sample.deviation_ns <= sample.wall_ns <= after + sample.deviation_ns
        ticks = [sample.ticks for sample in samples if sample]
        assert ticks == sorted(ticks)
        assert ticks[0] != ticks[-1]
    finally:
        clock.close()
    assert clock.sample() is None
    clock.close()


def test_a_card_nobody_knows_has_no_clock(driver: None) -> None:
    answer = vulkan.calibrator(0x1234, 0x5678, "No Such Card")
    assert not answer
    assert "No Such Card" in str(answer)


def test_no_loader_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSENSE_LIBVULKAN", "/nowhere/libvulkan.so.1")
    for answer in (vulkan.cards(), vulkan.calibrator(1, 2, "x")):
        assert not answer
        assert "/nowhere/libvulkan.so.1" in str(answer)


def test_a_library_without_the_functions_is_a_reason(build_library, fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSENSE_LIBVULKAN", str(build_library("loadable.c", "libvulkan.so.1")))
    answer = vulkan.cards()
    assert not answer
    assert "vkCreateInstance" in str(answer)
