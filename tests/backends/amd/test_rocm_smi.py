"""librocm_smi: a fake that aborts, hangs and answers every code, and the real one over a made-up ``/sys``."""

import ctypes
import glob
import json
import os
import pathlib
import struct
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.devices import Tree, run_over_sys
from support.machine import ROOT, require

from gpusense._capi import rocm_smi as capi
from gpusense._records.records import Unavailable
from gpusense.backends.amd import rocm_selftest, rocm_smi

#: Opens the backend in a process of its own and prints what it gives.
SHOW = """
import json, sys
sys.path.insert(0, {root!r})
from gpusense.backends.amd import sysfs as amd_sysfs, rocm_smi
def shown(backend, lanes):
    if not backend:
        return {{"reason": str(backend)}}
    samples = [backend.metrics.sample(device, lanes) for device in backend.devices.devices()]
    return {{
        "library": backend.library,
        "version": backend.version,
        "devices": [device._asdict() for device in backend.devices.devices()],
        "samples": [{{
            name: group._asdict() if hasattr(group, "_asdict") else group for name, group in sample._asdict().items()
        }} for sample in samples],
    }}
lanes = sys.argv[2].split(",") if len(sys.argv) > 2 else ("fast", "medium")
rocm = rocm_smi.open(sys.argv[1])
print(json.dumps({{"rocm": shown(rocm, lanes), "sysfs": shown(amd_sysfs.open(sys.argv[1]), lanes)}}))
"""


@pytest.fixture
def tree(tmp_path):
    tree = Tree(tmp_path / "sys")
    tree.amd(0, "0000:0a:00.0")
    tree.amd(1, "0000:03:00.0")
    return tree


@pytest.fixture(params=[5, 6])
def version(request):
    return request.param


@pytest.fixture
def library(build_library, version):
    return library_of(build_library, version)


def library_of(build_library, version):
    flags = ["-DVERSION_6"] if version == 6 else []
    return build_library("librocm_smi.c", f"librocm_smi64.so.{version}", *flags)


def show(library, tree, lanes="fast,medium,slow", **env):
    done = subprocess.run(
        [sys.executable, "-c", SHOW.format(root=str(ROOT)), str(tree.root), lanes],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "GPUSENSE_LIBROCM_SMI": str(library), **env},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])["rocm"]


def test_every_value_of_both_releases(library, version, tree):
    found = show(library, tree)
    assert found["library"] == str(library)
    assert found["version"] == f"1.0.0 by its own word, structs of ROCm {'6 and later' if version == 6 else '5'}"
    assert [device["pci_bus_id"] for device in found["devices"]] == ["0000:03:00.0", "0000:0a:00.0"]
    assert [device["name"] for device in found["devices"]] == ["Instinct � Made Up", "AMD GPU [1002:73bf]"]
    instinct, radeon = found["samples"]
    assert instinct["utilization"]["gpu_percent"] == 31
    assert instinct["utilization"]["memory_controller_percent"] == 13
    memory = instinct["memory"]
    assert (memory["total_bytes"], memory["used_bytes"], memory["free_bytes"]) == (1001, 400, 601)
    assert (memory["shared_total_bytes"], memory["shared_used_bytes"]) == (2000, 50)
    thermal = instinct["thermal"]
    assert (thermal["gpu_celsius"], thermal["hotspot_celsius"], thermal["memory_celsius"]) == (50, 51, None)
    assert (thermal["slowdown_celsius"], thermal["shutdown_celsius"]) == (100, 105)
    assert (thermal["fan_rpm"], thermal["fan_percent"]) == (1200, 20)
    power = instinct["power"]
    assert (power["average_watts"], power["limit_watts"]) == (150.5, 300)
    assert power["draw_watts"] == (160.25 if version == 6 else 150.5)
    assert power["energy_joules"] == 5
    assert power["energy_monotonic_ns"] is not None
    assert (instinct["clocks"]["graphics_mhz"], instinct["clocks"]["memory_mhz"]) == (1700, 900)
    pcie = instinct["pcie"]
    assert (pcie["generation"], pcie["width"], pcie["replay_count"]) == (4, 16, 4)
    assert (pcie["rx_bytes_per_s"], pcie["tx_bytes_per_s"]) == (5120, 2560)
    reasons = dict(radeon["reasons"])
    assert radeon["utilization"]["gpu_percent"] is None
    assert reasons["utilization.gpu_percent"] == "out of range: rsmi_dev_busy_percent_get gave 4294967295"
    assert radeon["power"]["energy_joules"] is None
    assert reasons["power.energy_joules"].startswith("unsupported: the library gives one unit")


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("abort:rsmi_init", "rsmi_init ended its process (signal 6)"),
        ("abort:rsmi_dev_busy_percent_get", "rsmi_dev_busy_percent_get ended its process (signal 6)"),
        ("abort:rsmi_dev_gpu_clk_freq_get", "rsmi_dev_gpu_clk_freq_get ended its process (signal 6)"),
        ("code:rsmi_init=8", "rsmi_init: INIT_ERROR (8)"),
    ],
)
def test_a_library_that_fails_its_test_is_never_used_here(build_library, tree, tmp_path, script, says):
    log = tmp_path / "calls"
    found = show(library_of(build_library, 5), tree, FAKE_RSMI=script, FAKE_RSMI_CALLS=str(log))
    assert says in found["reason"]
    assert log.read_text().count("rsmi_init") == 1  # the child's


def test_a_library_that_hangs_costs_the_time_limit_and_no_more(build_library, monkeypatch):
    path = str(library_of(build_library, 5))
    monkeypatch.setenv("FAKE_RSMI", "hang:rsmi_dev_temp_metric_get")
    found = rocm_selftest.run(path, [("rsmi_dev_temp_metric_get", (0, 0, None), ())], 1.0)
    assert isinstance(found, Unavailable)
    assert found.reason == "rsmi_dev_temp_metric_get did not return within 1 s"
    assert "/dev/shm" in found.hint


def test_no_device_is_unavailable(build_library, tree):
    found = show(library_of(build_library, 5), tree, FAKE_RSMI_NONE="1")
    assert "lists no device" in found["reason"]


@pytest.mark.parametrize("missing", ["module/amdgpu", "class/kfd"])
def test_without_amd_nothing_is_loaded(build_library, tree, tmp_path, missing):
    (tree.root / missing).rename(tree.root / "away")
    log = tmp_path / "calls"
    found = show(library_of(build_library, 5), tree, FAKE_RSMI_CALLS=str(log))
    assert f"no {tree.root}/{missing}" in found["reason"]
    assert not log.exists()


def test_with_a_sleeping_card_nothing_is_loaded(build_library, tmp_path):
    tree = Tree(tmp_path / "sys")
    tree.amd(power__runtime_status="suspended")
    log = tmp_path / "calls"
    found = show(library_of(build_library, 5), tree, FAKE_RSMI_CALLS=str(log))
    assert "0000:03:00.0 is sleeping" in found["reason"]
    assert not log.exists()


def test_clocks_the_library_would_abort_on_are_not_asked_for(build_library, tmp_path):
    tree = Tree(tmp_path / "sys")
    tree.amd(0, "0000:0a:00.0", pp_dpm_sclk="S: 500Mhz\n1: 789Mhz *\n2: 2070Mhz", pp_dpm_pcie="")
    tree.amd(1, "0000:03:00.0")
    log = tmp_path / "calls"
    found = show(library_of(build_library, 5), tree, FAKE_RSMI_CALLS=str(log))
    understood, not_understood = found["samples"]
    assert (understood["clocks"]["graphics_mhz"], understood["pcie"]["generation"]) == (1700, 4)
    assert (not_understood["clocks"]["graphics_mhz"], not_understood["clocks"]["memory_mhz"]) == (None, 900)
    assert "cannot be trusted" in dict(not_understood["reasons"])["clocks.graphics_mhz"]
    # Two devices and two tables, less one, in the test and in the sample.
    assert log.read_text().split().count("rsmi_dev_gpu_clk_freq_get") == 6


@pytest.fixture
def source(build_library, tree, monkeypatch, version):
    """The backend in this process, without the child's test."""
    library = ctypes.CDLL(str(library_of(build_library, version)))
    return rocm_smi.RocmSmiSource(rocm_smi.bind(library, capi.ROCM_SMI, "fake"), str(tree.root))


def scripted(monkeypatch, script):
    """The library reads the C environment, which ``os.environ`` writes to."""
    monkeypatch.setenv("FAKE_RSMI", script)


@pytest.mark.parametrize("code", [*capi.CODES, 77, -1])
def test_every_code_is_a_reason(source, monkeypatch, code):
    scripted(monkeypatch, f"code:rsmi_dev_memory_busy_percent_get={code}")
    metrics = source.sample(source.devices()[0])
    assert metrics.state == "ok"
    assert metrics.utilization.gpu_percent == 31  # the others go on
    field = "utilization.memory_controller_percent"
    if code == 0:
        assert metrics.utilization.memory_controller_percent is not None
        return
    assert metrics.utilization.memory_controller_percent is None
    kind = "unsupported" if code in capi.REFUSED else "denied" if code == 4 else "stale"
    name = capi.CODES.get(code, "unknown code")
    assert metrics.reason(field) == f"{kind}: rsmi_dev_memory_busy_percent_get: {name} ({code})"


def test_what_is_refused_is_asked_again_after_a_while(source, monkeypatch, tmp_path):
    log = tmp_path / "calls"
    monkeypatch.setenv("FAKE_RSMI_CALLS", str(log))
    now = [10**9]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    scripted(monkeypatch, "code:rsmi_dev_fan_rpms_get=2")
    device = source.devices()[0]
    for _ in range(60):
        now[0] += 10**9
        source.sample(device)
    assert log.read_text().split().count("rsmi_dev_fan_rpms_get") == 6  # after 1, 2, 4, 8 and 16 seconds
    scripted(monkeypatch, "")
    now[0] += 32 * 10**9
    assert source.sample(device).thermal.fan_rpm is not None


def test_what_is_not_supported_is_not_asked_each_time(source, monkeypatch, tmp_path):
    log = tmp_path / "calls"
    monkeypatch.setenv("FAKE_RSMI_CALLS", str(log))
    scripted(monkeypatch, "code:rsmi_dev_fan_rpms_get=2,code:rsmi_dev_power_cap_get=16")
    device = source.devices()[0]
    for _ in range(3):
        metrics = source.sample(device)
    calls = log.read_text().split()
    assert calls.count("rsmi_dev_fan_rpms_get") == 1  # not supported
    assert calls.count("rsmi_dev_power_cap_get") == 3  # busy
    assert metrics.reason("thermal.fan_rpm") == "unsupported: rsmi_dev_fan_rpms_get said so before"


def test_a_table_without_an_active_level_is_no_clock(source, monkeypatch):
    monkeypatch.setenv("FAKE_RSMI_NO_LEVEL", "1")
    metrics = source.sample(source.devices()[0])
    assert (metrics.clocks.graphics_mhz, metrics.clocks.memory_mhz) == (1700, None)
    assert metrics.reason("clocks.memory_mhz") == "out of range: rsmi_dev_gpu_clk_freq_get gave no active level"


def test_a_function_the_library_lacks_is_a_reason_and_no_crash(build_library, tree):
    library = build_library("librocm_smi.c", "librocm_smi64.so.9", "-DNO_FAN_RPMS")
    sample = show(library, tree)["samples"][0]
    assert (sample["thermal"]["fan_rpm"], sample["thermal"]["fan_percent"]) == (None, 20)
    assert dict(sample["reasons"])["thermal.fan_rpm"] == "unsupported: the library has no rsmi_dev_fan_rpms_get"


def test_packets_without_a_size_are_no_throughput(source, monkeypatch):
    monkeypatch.setenv("FAKE_RSMI_NO_PACKETS", "1")
    metrics = source.sample(source.devices()[0], ("slow",))
    assert (metrics.pcie.rx_bytes_per_s, metrics.pcie.tx_bytes_per_s) == (None, None)
    assert metrics.reason("pcie.rx_bytes_per_s") == (
        "out of range: rsmi_dev_pci_throughput_get gave packets of 0 bytes"
    )


def test_lanes_decide_what_is_called(source, monkeypatch, tmp_path):
    log = tmp_path / "calls"
    monkeypatch.setenv("FAKE_RSMI_CALLS", str(log))
    source.sample(source.devices()[0], ("fast",))
    assert "rsmi_dev_pci_throughput_get" not in log.read_text()  # waits a second on a real card
    assert "rsmi_dev_fan_rpms_get" not in log.read_text()
    source.sample(source.devices()[0], ("slow",))
    assert "rsmi_dev_pci_throughput_get" in log.read_text()


def test_after_a_fork_the_library_is_left_alone(source, monkeypatch):
    monkeypatch.setattr(rocm_smi.os, "getpid", lambda: -1)
    metrics = source.sample(source.devices()[0])
    assert (metrics.state, metrics.reason("power.draw_watts")) == ("lost", "lost: opened before a fork")


def test_a_card_that_fell_asleep_is_not_called(source, tree, monkeypatch, tmp_path):
    log = tmp_path / "calls"
    monkeypatch.setenv("FAKE_RSMI_CALLS", str(log))
    (tree.root / "devices/pci0000:00/0000:03:00.0/power/runtime_status").write_text("suspended\n")
    assert source.sample(source.devices()[0]).state == "sleeping"
    assert not log.exists()


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.booleans(), st.binary(max_size=64))
def test_no_table_is_read_beyond_its_levels(count, current, version_6, rest):
    head = struct.pack("<III", 1, count, current) if version_6 else struct.pack("<II", count, current)
    found = capi.frequencies(head.ljust(16 if version_6 else 8, b"\0") + rest.ljust(4096, b"\1"), version_6)
    if count <= (33 if version_6 else 32) and current < count:
        assert len(found[0]) == count
    else:
        assert isinstance(found, str)


def test_a_partition_is_not_part_of_the_address():
    assert capi.pci_address(0x2_5000_C1FC) == "0002:c1:1f.4"


def test_an_interpreter_that_is_none_is_not_started(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/opt/blender/blender")
    found = rocm_selftest.run("/nonexistent", [], 1)
    assert "no Python to test the library with" in found.reason


def test_a_library_that_does_not_load_is_unavailable_with_the_reason():
    found = rocm_selftest.run("/nonexistent/librocm_smi64.so", [], 30)
    assert "load ended its process (exit code 1)" in found.reason


# The real library.


def real_library():
    names = ("/usr/lib/librocm_smi64.so*", "/usr/lib/*/librocm_smi64.so*", "/opt/rocm*/lib/librocm_smi64.so*")
    return next((path for name in names for path in sorted(glob.glob(name))), None)


@pytest.fixture
def over_sys(tmp_path):
    """``over_sys(tree)``: both AMD backends over ``tree`` mounted at ``/sys``, as decoded JSON."""
    require(real_library(), "librocm_smi64 (Debian: librocm-smi64-1)")

    def run(tree):
        env = {**os.environ, "GPUSENSE_LIBROCM_SMI": real_library(), "HOME": str(tmp_path)}
        command = [sys.executable, "-c", SHOW.format(root=str(ROOT)), "/sys", "fast,medium"]
        done = run_over_sys(tree.root, command, env=env)
        require(done is not None, "mount namespaces")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture
def real_tree(tmp_path):
    return Tree(tmp_path / "sys")


def test_the_real_library_agrees_with_sysfs(over_sys, real_tree):
    real_tree.amd(0, "0000:03:00.0")
    real_tree.amd(1, "0000:0a:00.0", gpu_busy_percent="7", **{"hwmon/temp1_input": "33000"})
    real_tree.kfd({"0000:03:00.0": 0, "0000:0a:00.0": 1})
    found = over_sys(real_tree)
    assert "reason" not in found["rocm"], found["rocm"]
    pairs = list(zip(found["rocm"]["samples"], found["sysfs"]["samples"], strict=True))
    assert [rocm["utilization"]["gpu_percent"] for rocm, _ in pairs] == [42, 7]
    for rocm, sysfs in pairs:
        for group, names in {
            "utilization": ("gpu_percent", "memory_controller_percent"),
            "memory": ("total_bytes", "used_bytes", "free_bytes", "shared_total_bytes", "shared_used_bytes"),
            "thermal": (
                "gpu_celsius",
                "hotspot_celsius",
                "memory_celsius",
                "slowdown_celsius",
                "shutdown_celsius",
                "fan_rpm",
                "fan_percent",
            ),
            "power": ("draw_watts", "average_watts", "limit_watts"),
            "pcie": ("generation", "width"),
        }.items():
            assert {name: rocm[group][name] for name in names} == {name: sysfs[group][name] for name in names}, group
        # The library gives the level, sysfs the measured clock.
        assert (rocm["clocks"]["graphics_mhz"], sysfs["clocks"]["graphics_mhz"]) == (1800, 1795)


def test_the_real_library_is_kept_from_the_line_it_aborts_on(over_sys, real_tree):
    real_tree.amd(pp_dpm_sclk="S: 500Mhz\n1: 789Mhz *\n2: 2070Mhz")
    real_tree.kfd({"0000:03:00.0": 0})
    (sample,) = over_sys(real_tree)["rocm"]["samples"]
    assert sample["clocks"]["graphics_mhz"] is None
    assert sample["utilization"]["gpu_percent"] == 42


def test_the_real_library_does_abort_there_and_only_the_child_dies(real_tree):
    require(real_library(), "librocm_smi64 (Debian: librocm-smi64-1)")
    if not pathlib.Path(real_library()).resolve().name.startswith("librocm_smi64.so.1"):
        pytest.skip("this release parses the line")
    real_tree.amd(pp_dpm_sclk="S: 500Mhz\n1: 789Mhz *\n2: 2070Mhz")
    real_tree.kfd({"0000:03:00.0": 0})
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from gpusense.backends.amd import rocm_selftest\n"
        f"print(rocm_selftest.run({real_library()!r}, [('rsmi_dev_gpu_clk_freq_get', (0, None), ())], 30))"
    )
    done = run_over_sys(real_tree.root, [sys.executable, "-c", code])
    require(done is not None, "mount namespaces")
    assert "rsmi_dev_gpu_clk_freq_get ended its process (signal 6)" in done.stdout, done.stderr


def test_the_real_library_without_a_compute_node_lists_nothing(over_sys, real_tree):
    real_tree.amd()
    found = over_sys(real_tree)
    assert "class/kfd" in found["rocm"]["reason"] or "INIT_ERROR" in found["rocm"]["reason"]
    assert found["sysfs"]["samples"][0]["utilization"]["gpu_percent"] == 42
