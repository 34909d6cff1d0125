"""First contact in a child: every way it can go wrong is a sentence; adapters of one card are one device."""

import os
import pathlib
import subprocess
import sys

import pytest
from support import wgpu_wheels

from gpusense.backends.wgpu import child
from gpusense.backends.wgpu import source as backend


@pytest.fixture
def fake(build_library, fakes, monkeypatch: pytest.MonkeyPatch) -> str:
    path = str(build_library("libwgpu_native.c", "libwgpu_native.so"))
    monkeypatch.setenv("GPUSENSE_LIBWGPU_NATIVE", path)
    monkeypatch.setenv("GPUSENSE_LIBVULKAN", "/nowhere/libvulkan.so.1")
    return path


def test_adapters_of_one_card_are_one_device(fake: str) -> None:
    opened = backend.open()
    assert opened, opened
    assert (opened.name, opened.library, opened.version) == ("wgpu", fake, "29.0.1.1")
    (device,) = opened.devices.devices()
    assert (device.name, device.vendor, device.kind, device.driver) == (
        "Fake Card",
        "nvidia",
        "discrete",
        "driver 1.2.3",
    )
    details = dict(device.details)
    assert details["adapter_backend"] == "Vulkan"
    assert details["timestamp_query"] == "yes"
    assert details["also"].startswith("OpenGL: Fake Card")
    assert device.memory_total_bytes is None


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("abort", ("signal 6", "panicked at src/lib.rs:605")),
        ("crash", ("signal 11",)),
        ("null", ("Instance: no handle",)),
        ("none", ("finds no adapter",)),
    ],
)
def test_what_goes_wrong_in_the_child_is_a_reason(fake: str, monkeypatch, script: str, words: tuple[str, ...]) -> None:
    monkeypatch.setenv("FAKE_WGPU", script)
    opened = backend.open()
    assert not opened
    for word in words:
        assert word in str(opened)


def test_a_driver_that_hangs_costs_the_time_limit(fake: str, monkeypatch) -> None:
    monkeypatch.setenv("FAKE_WGPU", "hang")
    opened = backend.open(timeout_s=1.0)
    assert not opened
    assert "no answer in 1 s" in opened.reason


def test_noise_on_stdout_is_not_the_answer(fake: str, monkeypatch) -> None:
    monkeypatch.setenv("FAKE_WGPU", "noise")
    assert backend.open()


def test_no_interpreter_no_child(fake: str, monkeypatch) -> None:
    monkeypatch.setattr(child.sys, "executable", "")
    assert "there is no Python" in backend.open().reason


def test_an_unknown_version_starts_no_child(build_library, fakes, monkeypatch) -> None:
    path = build_library("libwgpu_native.c", "libwgpu_native.so", "-DVERSION=0x63000000u")
    monkeypatch.setenv("GPUSENSE_LIBWGPU_NATIVE", str(path))
    monkeypatch.setattr(child, "ask", lambda *_: pytest.fail("a child was started"))
    opened = backend.open()
    assert "99.0.0.0" in opened.reason
    assert not backend.self_test()


def adapter(backend_name: str, **changes) -> dict:
    base = {
        "name": "Card",
        "driver": "",
        "driver_info": "",
        "vendor_id": 0x1002,
        "device_id": 0x73BF,
        "backend": backend_name,
        "type": "discrete",
        "timestamp_query": True,
    }
    return base | changes


def card(**changes) -> dict:
    base = {
        "name": "Card",
        "vendor_id": 0x1002,
        "device_id": 0x73BF,
        "timestamp_period_ns": 10.0,
        "timestamp_valid_bits": 64,
        "heaps": [
            {"size_bytes": 16 << 30, "device_local": True, "budget_bytes": 15 << 30, "usage_bytes": 0},
            {"size_bytes": 64 << 30, "device_local": False, "budget_bytes": None, "usage_bytes": None},
        ],
        "pci_bus_id": "0000:03:00.0",
        "uuid": "00000000-0300-0000-0000-000000000000",
        "calibrated": True,
    }
    return base | changes


def test_two_identical_cards_stay_two() -> None:
    adapters = [
        adapter("OpenGL", device_id=0),
        adapter("Vulkan"),
        adapter("Vulkan"),
        adapter("D3D12"),
        adapter("D3D12"),
    ]
    cards = [card(), card(pci_bus_id="0000:43:00.0")]
    devices = backend.merge(adapters, cards)
    assert [device.pci_bus_id for device in devices] == ["0000:03:00.0", "0000:43:00.0"]
    assert [device.index for device in devices] == [0, 1]
    assert [dict(device.details)["adapter_backend"] for device in devices] == ["Vulkan", "Vulkan"]
    assert devices[0].memory_total_bytes == 16 << 30
    assert dict(devices[0].details)["heap_0"] == f"device, {16 << 30} bytes, budget {15 << 30} bytes"
    assert devices[0].uuid is None  # only NVIDIA's is known elsewhere


def test_different_cards_stay_apart_and_the_order_is_by_backend() -> None:
    adapters = [
        adapter("D3D12", name="B", device_id=2),
        adapter("Vulkan", name="A", device_id=1),
        adapter("D3D12", name="A", device_id=1),
    ]
    devices = backend.merge(adapters, [])
    assert [device.name for device in devices] == ["A", "B"]
    assert [dict(device.details)["adapter_backend"] for device in devices] == ["Vulkan", "D3D12"]


def test_metal_reports_no_vendor_id() -> None:
    (device,) = backend.merge([adapter("Metal", name="Apple M2", vendor_id=0, device_id=0, type="integrated")], [])
    assert (device.vendor, device.kind) == ("apple", "integrated")
    (device,) = backend.merge([adapter("Vulkan", name="", vendor_id=0xBAD, type=None)], [])
    assert (device.vendor, device.kind, device.name) == ("unknown", None, "unnamed adapter")


def test_every_wheel_computes_times_and_survives_an_error(wheel: pathlib.Path, driver: None, monkeypatch) -> None:
    monkeypatch.setenv("GPUSENSE_LIBWGPU_NATIVE", str(wgpu_wheels.library(wheel)))
    result = backend.self_test(timeout_s=60)
    assert result, result
    assert result["correct"] is True
    assert result["gpu_ticks"] > 0
    assert result["validation_error_survived"] is True
    opened = backend.open(timeout_s=60)
    assert opened, opened
    names = [device.name for device in opened.devices.devices()]
    assert len(names) == len(set(names))
    major = int(opened.version.split(".")[0] or 0)
    assert (result["timestamp_period_ns"] is not None) == (major >= 27 and opened.version != "27.0.2.0")


def test_the_child_does_not_need_the_hosts_package(fake: str, tmp_path: pathlib.Path, run_python) -> None:
    """Vendored as host/_vendor/gpusense: the host is not imported by the child."""
    import shutil

    import gpusense

    host = tmp_path / "host" / "_vendor"
    shutil.copytree(os.path.dirname(gpusense.__file__), host / "gpusense", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "host" / "__init__.py").write_text("import os\nassert not os.environ.get('GPUSENSE') == 'off'\n")
    (host / "__init__.py").write_text("")
    code = "from host._vendor.gpusense.backends.wgpu import source as wgpu; b = wgpu.open(); print(b and b.version, b)"
    done = run_python(code, GPUSENSE_LIBWGPU_NATIVE=fake, GPUSENSE_LIBVULKAN="/nowhere/x.so", PYTHONPATH=str(tmp_path))
    assert done.stdout.startswith("29.0.1.1"), done.stdout + done.stderr


@pytest.mark.parametrize("frozen", [True, False])
def test_a_program_that_embeds_python_is_not_started_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path, frozen: bool
) -> None:
    started = []
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **_: started.append(arguments))
    monkeypatch.setattr(sys, "executable", str(tmp_path / ("python-tool" if frozen else "renderer")))
    if frozen:
        monkeypatch.setattr(sys, "frozen", True, raising=False)
    answer = child.ask("/nowhere/libwgpu_native.so", "adapters")
    assert not answer
    assert "this process runs in" in answer.reason
    assert started == []


class Timing:
    def __init__(self) -> None:
        self.asked: list[float] = []

    def flush(self, timeout_s: float) -> bool:
        self.asked.append(timeout_s)
        return False

    def status(self) -> dict[str, int]:
        return {"timed": 3}


def test_records_reach_whoever_started_the_source_last() -> None:
    source, first, second = backend.WgpuSource(), [], []
    source.hand_on(["before"])
    source.start(first.extend)
    source.hand_on(["one"])
    source.start(second.extend)
    source.hand_on(["two"])
    source.stop()
    source.hand_on(["after"])
    assert (first, second) == (["one"], ["two"])


def test_who_times_is_asked() -> None:
    source, timing = backend.WgpuSource(), Timing()
    assert (source.flush(1.0), source.status()) == (True, {})
    source.timed_by(timing)
    assert (source.flush(0.5), source.status(), timing.asked) == (False, {"timed": 3}, [0.5])
    source.timed_by(None)
    assert (source.flush(1.0), source.status(), timing.asked) == (True, {}, [0.5])


def test_devices_and_records_are_of_one_object(fake: str) -> None:
    opened = backend.open()
    assert opened.devices is opened.records is backend.SOURCE
    assert [device.name for device in backend.SOURCE.devices()] == ["Fake Card"]
