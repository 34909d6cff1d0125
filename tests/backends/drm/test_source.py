"""fdinfo, hwmon, devfreq and Jetson files over made-up trees."""

import errno
import os
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.devices import Proc, Tree

from gpusense._records.protocols import Backend
from gpusense._records.records import Unavailable
from gpusense.backends.drm import clients
from gpusense.backends.drm import source as drm_files
from gpusense.monitor._history import energy_joules

I915 = """pos:\t0
drm-driver:\ti915
drm-client-id:\t{client}
drm-pdev:\t0000:00:02.0
drm-total-system0:\t2048 KiB
drm-resident-system0:\t1024 KiB
drm-engine-render:\t{render} ns
drm-engine-video:\t{video} ns
drm-engine-capacity-video:\t2
"""
XE = """drm-driver:\txe
drm-client-id:\t{client}
drm-pdev:\t0000:03:00.0
drm-total-vram0:\t8 MiB
drm-resident-vram0:\t4 MiB
drm-total-gtt:\t512 KiB
drm-cycles-rcs:\t{busy}
drm-total-cycles-rcs:\t{total}
"""
AMD = """drm-driver:\tamdgpu
drm-client-id:\t5
drm-pdev:\t0000:0C:00.0
drm-memory-vram:\t3 MiB
drm-memory-gtt: \t0 KiB
drm-engine-gfx:\t1000 ns
drm-engine-dec:\t10 ns
"""
PANFROST = """drm-driver:\tpanfrost
drm-client-id:\t3
drm-engine-fragment:\t1846584880 ns
drm-cycles-fragment:\t1424359409
drm-maxfreq-fragment:\t799999987 Hz
drm-resident-memory:\t64 MiB
"""


class Clock:
    def __init__(self):
        self.now = 1_000_000_000

    def __call__(self):
        return self.now


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path / "sys")


@pytest.fixture
def proc(tmp_path):
    return Proc(tmp_path / "proc")


@pytest.fixture
def clock():
    return Clock()


def opened(tree, proc, clock):
    backend = drm_files.open(str(tree.root), str(proc.root), clock)
    assert isinstance(backend, Backend), backend
    return backend.metrics, backend.devices.devices()[0]


def test_without_such_hardware_it_is_unavailable_with_the_reason(tmp_path, tree):
    assert "no graphics driver" in drm_files.open(str(tmp_path / "empty")).reason
    tree.card(driver="amdgpu")
    other = drm_files.open(str(tree.root), str(tmp_path))
    assert isinstance(other, Unavailable)
    assert "none of the 1 cards" in other.reason


@pytest.mark.parametrize(
    ("text", "driver", "device", "engines", "cycles", "memory"),
    [
        (I915, "i915", "0000:00:02.0", {"render": 5, "video": 9}, {}, {"system0": 1 << 20}),
        (XE, "xe", "0000:03:00.0", {}, {"rcs": (5, 9)}, {"vram0": 4 << 20, "gtt": 512 << 10}),
        (AMD, "amdgpu", "0000:0c:00.0", {"gfx": 1000, "dec": 10}, {}, {"vram": 3 << 20, "gtt": 0}),
        (PANFROST, "panfrost", None, {"fragment": 1846584880}, {}, {"memory": 64 << 20}),
    ],
)  # fmt: skip
def test_every_drivers_dialect(text, driver, device, engines, cycles, memory):
    client = clients.parse(text.format(client=7, render=5, video=9, busy=5, total=9), 12)
    assert (client.driver, client.device, client.pid) == (driver, device, 12)
    assert (client.engines_ns, client.engines_cycles, client.memory) == (engines, cycles, memory)


def test_a_file_that_is_no_drm_client_is_none():
    assert clients.parse("pos:\t0\nflags:\t02\n", 1) is None


@settings(deadline=None)
@given(st.text(max_size=300))
def test_no_text_makes_the_parser_raise(text):
    clients.parse("drm-driver:\tx\n" + text, 1, "4")


@settings(deadline=None)
@given(
    busy=st.integers(0, 10**12),
    idle=st.integers(0, 10**12),
    before=st.tuples(st.integers(0, 10**12), st.integers(0, 10**12)),
)
def test_cycles_and_nanoseconds_give_the_same_share(busy, idle, before):
    total = busy + idle
    was = {("d", None, "1"): client(engines_ns={"a": before[0]}, engines_cycles={"b": before})}
    now = {
        ("d", None, "1"): client(
            engines_ns={"a": before[0] + busy}, engines_cycles={"b": (before[0] + busy, before[1] + total)}
        )
    }
    shares = clients.busy_percent(was, now, total)[("d", None, "1")]
    if total:
        assert shares["a"] == shares["b"] == pytest.approx(100 * busy / total)
    else:
        assert shares == {}


def client(**fields):
    empty = {"engines_ns": {}, "engines_cycles": {}, "capacity": {}, "memory": {}}
    return clients.Client("d", None, "1", 1, **{**empty, **fields})


def test_counters_that_went_backwards_give_no_share():
    key = ("d", None, "1")
    shares = clients.busy_percent({key: client(engines_ns={"a": 900})}, {key: client(engines_ns={"a": 5})}, 1000)
    assert shares == {key: {}}


def test_i915_load_memory_clock_power_and_processes(tree, proc, clock):
    folder = tree.card(
        pci="0000:00:02.0",
        driver="i915",
        pci_id="8086:A780",
        hwmon={"name": "i915", "energy1_input": "5000000", "power1_max": "0"},
    )
    (folder / "drm/card0/gt_act_freq_mhz").write_text("1450\n")
    proc.client(50, 3, I915.format(client=1, render=0, video=0), "player")
    proc.client(50, 4, I915.format(client=1, render=0, video=0), "player")  # the same client, inherited
    proc.client(60, 3, I915.format(client=2, render=0, video=0), "game")
    source, device = opened(tree, proc, clock)
    assert (device.vendor, device.kind, device.name) == ("intel", "integrated", "Intel GPU [8086:a780]")
    first = source.sample(device)
    assert first.utilization.gpu_percent is None
    assert first.reason("utilization.gpu_percent") == "stale: a share of time needs two samples"
    assert first.reason("power.average_watts") == "stale: a difference of energies needs two samples"
    clock.now += 1_000_000_000
    proc.client(50, 3, I915.format(client=1, render=250_000_000, video=1_000_000_000), "player")
    proc.client(50, 4, I915.format(client=1, render=250_000_000, video=1_000_000_000), "player")
    proc.client(60, 3, I915.format(client=2, render=500_000_000, video=0), "game")
    (folder / "hwmon/hwmon0/energy1_input").write_text("17000000\n")
    second = source.sample(device)
    assert second.utilization.gpu_percent == pytest.approx(75)
    assert second.utilization.media_percent == pytest.approx(50)  # one of two video engines
    assert second.clocks.graphics_mhz == 1450
    assert (second.power.energy_joules, second.power.average_watts, second.power.draw_watts) == (17, 12, 12)
    joules, method, _ = energy_joules([first, second], 10**10)
    assert (joules, method[:7]) == (12, "counter")
    assert second.reason("power.limit_watts") is not None  # 0 says "no limit", not "0 W"
    assert (second.memory.total_bytes, second.memory.used_bytes) == (16000000 * 1024, 12000000 * 1024)
    assert second.memory.unified is True
    rows = {row.pid: row for row in second.processes}
    assert (rows[50].name, rows[50].memory_used_bytes) == ("player", 1 << 20)
    assert rows[60].gpu_percent == pytest.approx(50)


def test_xe_counts_cycles_and_names_its_throttling(tree, proc, clock):
    folder = tree.card(
        driver="xe",
        pci_id="8086:E20B",
        files={"tile0/gt0/freq0/act_freq": "2850", "tile0/gt0/freq0/throttle/status": "0"},
        hwmon={
            "name": "xe",
            "temp2_label": "pkg",
            "temp2_input": "61000",
            "temp3_label": "vram",
            "temp3_input": "70000",
        },
    )
    proc.client(50, 3, XE.format(client=1, busy=100, total=1000))
    source, device = opened(tree, proc, clock)
    assert device.kind == "discrete"
    assert source.sample(device).clocks.throttle_reasons == ()
    proc.client(50, 3, XE.format(client=1, busy=400, total=2000))
    tree.write(str((folder / "tile0/gt0/freq0/throttle/status").relative_to(tree.root)), "1")
    for name, value in (("pl1", "1"), ("thermal", "0")):
        tree.write(str((folder / f"tile0/gt0/freq0/throttle/reason_{name}").relative_to(tree.root)), value)
    clock.now += 1_000_000_000
    metrics = source.sample(device)
    assert metrics.utilization.gpu_percent == pytest.approx(30)
    assert metrics.clocks.throttle_reasons == ("pl1",)
    assert (metrics.thermal.gpu_celsius, metrics.thermal.memory_celsius) == (61, 70)
    assert (metrics.memory.used_bytes, metrics.memory.shared_used_bytes) == (4 << 20, 512 << 10)
    assert metrics.memory.unified is False


BRIDGE = {"class": "0x060400", "vendor": "0x8086"}
INNER_LINK = {
    "current_link_speed": "2.5 GT/s PCIe",
    "current_link_width": "1",
    "max_link_speed": "2.5 GT/s PCIe",
    "max_link_width": "1",
}
#: What four Intel machines said, in figures: an Arc A380 under i915 and under xe, an Arc B580 under Linux 6.16, and the
#: GPU of a Comet Lake processor.
INTEL = {
    "a380-i915": {
        "driver": "i915",
        "pci_id": "8086:56A5",
        "pci": "0000:0b:00.0",
        "files": {"current_link_speed": "2.5 GT/s PCIe", "current_link_width": "1"},
        "hwmon": {
            "name": "i915", "temp1_input": "55000", "fan1_input": "0", "energy1_input": "25637161804",
            "power1_max": "55000000", "power1_rated_max": "0", "in0_input": "603",
        },
    },
    "a380-xe": {
        "driver": "xe",
        "pci_id": "8086:56A5",
        "pci": "0000:08:00.0",
        "files": {**INNER_LINK, "tile0/gt0/freq0/act_freq": "0"},
        "hwmon": {
            "name": "xe", "temp2_label": "pkg", "temp2_input": "56000", "temp3_label": "vram", "temp3_input": "54000",
            "fan1_input": "945", "fan2_input": "0", "energy2_label": "pkg", "energy2_input": "59540970520",
            "power2_label": "pkg", "power2_max": "55000000",
        },
    },
    "b580": {
        "driver": "xe",
        "pci_id": "8086:E20B",
        "pci": "0000:0b:00.0",
        "files": {**INNER_LINK, "tile0/gt0/freq0/act_freq": "400"},
        "hwmon": {
            "name": "xe", "temp2_label": "pkg", "temp2_input": "46000", "temp3_label": "vram", "temp3_input": "48000",
            "fan1_input": "0", "fan2_input": "418", "fan3_input": "0", "energy1_label": "card", "energy1_input": "0",
            "energy2_label": "pkg", "energy2_input": "29523753173", "power1_label": "card", "power1_crit": "380000000",
        },
    },
    "cometlake": {
        "driver": "i915",
        "pci_id": "8086:9B41",
        "pci": "0000:00:02.0",
        "files": {"current_link_speed": "Unknown", "current_link_width": "0", "drm/card0/gt_act_freq_mhz": "300"},
        "hwmon": None,
    },
}  # fmt: skip


def after_a_second(source, device, clock, folder, **steps):
    """The sample a second later, in which the files of hwmon have grown."""
    source.sample(device)
    clock.now += 1_000_000_000
    for name, step in steps.items():
        (file,) = folder.glob(f"hwmon/hwmon*/{name}")
        file.write_text(f"{int(file.read_text()) + step}\n")
    return source.sample(device)


@pytest.mark.parametrize(
    ("name", "counter", "power", "fan", "celsius", "mhz"),
    [
        ("a380-i915", "energy1_input", (31.5, 55, "gpu"), 0, (55, None), None),
        ("a380-xe", "energy2_input", (31.5, 55, "package"), 945, (56, 54), None),
        ("b580", "energy2_input", (31.5, None, "package"), 418, (46, 48), 400),
        ("cometlake", None, (None, None, None), None, (None, None), 300),
    ],
)
def test_recorded_intel_gpus(tree, proc, clock, name, counter, power, fan, celsius, mhz):
    folder = tree.card(**INTEL[name])
    source, device = opened(tree, proc, clock)
    found = after_a_second(source, device, clock, folder, **({counter: 31_500_000} if counter else {}))
    watts, *others = power
    assert found.power.draw_watts == (watts and pytest.approx(watts))
    assert [found.power.limit_watts, found.power.scope] == others
    assert found.thermal.fan_rpm == fan
    assert (found.thermal.gpu_celsius, found.thermal.memory_celsius) == celsius
    assert found.clocks.graphics_mhz == mhz
    assert (found.pcie.generation, found.pcie.width) == (None, None)
    for field in ("power.draw_watts", "power.limit_watts", "thermal.fan_rpm", "clocks.graphics_mhz", "pcie.width"):
        group, _, last = field.partition(".")
        if getattr(getattr(found, group), last) is None:
            assert found.reason(field).startswith(("unsupported: ", "sleeping: ", "out of range: ")), field
    if name == "a380-xe":
        assert found.reason("clocks.graphics_mhz") == "sleeping: act_freq is 0, the clock stands still"


def test_the_link_of_an_arc_card_is_that_of_its_own_bridge_with_the_slot(tree, proc, clock):
    """The chip's port has generation 1 and one lane, whatever the slot."""
    slot = {"current_link_speed": "16.0 GT/s PCIe", "current_link_width": "8", "max_link_width": "8"}
    tree.card(
        **INTEL["b580"],
        behind={
            "0000:00:01.0": BRIDGE,
            "0000:09:00.0": {**BRIDGE, **slot, "max_link_speed": "16.0 GT/s PCIe"},
            "0000:0a:01.0": {**BRIDGE, **INNER_LINK},
        },
    )
    source, device = opened(tree, proc, clock)
    assert source.sample(device).pcie[:4] == (4, 8, 4, 8)


def test_a_counter_that_jumps_is_out_of_range_and_the_next_difference_is_true(tree, proc, clock):
    folder = tree.card(**INTEL["a380-i915"])
    source, device = opened(tree, proc, clock)
    jumped = after_a_second(source, device, clock, folder, energy1_input=7 * 10**14)
    assert jumped.power.draw_watts is None
    assert jumped.reason("power.draw_watts").startswith("out of range: energy1_input")
    assert after_a_second(source, device, clock, folder, energy1_input=20_000_000).power.draw_watts == pytest.approx(20)


def test_a_counter_that_stands_still_is_no_zero_watts(tree, proc, clock):
    folder = tree.card(**INTEL["a380-i915"])
    source, device = opened(tree, proc, clock)
    still = after_a_second(source, device, clock, folder)
    assert still.power.draw_watts is None
    assert still.reason("power.draw_watts") == "stale: energy1_input has not moved for 1.0 s"
    assert after_a_second(source, device, clock, folder, energy1_input=30_000_000).power.draw_watts == pytest.approx(15)


def test_after_a_gap_no_energy_of_before_it_counts(tree, proc, clock):
    folder = tree.card(**INTEL["a380-i915"])
    source, device = opened(tree, proc, clock)
    after_a_second(source, device, clock, folder, energy1_input=20_000_000)
    clock.now += 1_000_000_000
    (folder / "hwmon/hwmon0/energy1_input").write_text("26000000000\n")
    assert source.sample(device, ("fast", "anew")).reason("power.draw_watts").startswith("stale: ")


def test_a_driver_bound_again_may_give_hwmon_another_number(tree, proc, clock):
    folder = tree.card(**INTEL["a380-xe"])
    source, device = opened(tree, proc, clock)
    assert source.sample(device).thermal.gpu_celsius == 56
    (folder / "hwmon/hwmon0").rename(folder / "hwmon/hwmon7")
    assert source.sample(device).thermal.gpu_celsius == 56


def test_panfrost_on_a_platform_bus_with_devfreq(tree, proc, clock):
    place = "devices/platform/ff9a0000.gpu"
    tree.write(f"{place}/uevent", "DRIVER=panfrost\nOF_COMPATIBLE_0=rockchip,rk3399-mali\nOF_FULLNAME=/gpu@ff9a0000")
    tree.write(f"{place}/devfreq/ff9a0000.gpu/cur_freq", "800000000")
    tree.write(f"{place}/drm/card1/dev", "226:1")
    (tree.root / place / "drm/card1/device").symlink_to("../..")
    (tree.root / "class/drm/card1").symlink_to(f"../../{place}/drm/card1")
    (tree.root / "class/devfreq").mkdir()
    (tree.root / "class/devfreq/ff9a0000.gpu").symlink_to(f"../../{place}/devfreq/ff9a0000.gpu")
    (tree.root / place / "devfreq/ff9a0000.gpu/device").symlink_to("../..")
    proc.client(9, 3, PANFROST, "kwin")
    backend = drm_files.open(str(tree.root), str(proc.root), clock)
    (device,) = backend.devices.devices()  # once, not again as a devfreq device
    assert (device.vendor, device.pci_bus_id, device.kind) == ("arm", None, "integrated")
    metrics = backend.metrics.sample(device)
    assert metrics.clocks.graphics_mhz == 800
    assert [row.name for row in metrics.processes] == ["kwin"]


@pytest.mark.parametrize(
    "place", ["devices/gpu.0", "devices/platform/17000000.gpu", "devices/platform/bus@0/17000000.gpu"]
)
def test_jetson_load_temperature_rail_and_unified_memory(tree, proc, clock, place):
    tree.write(f"{place}/load", "437")
    tree.write(f"{place}/devfreq/17000000.gpu/cur_freq", "918000000")
    tree.write("firmware/devicetree/base/model", b"NVIDIA Jetson Orin Nano Developer Kit\0")
    tree.write("class/thermal/thermal_zone0/type", "cpu-thermal")
    tree.write("class/thermal/thermal_zone1/type", "gpu-thermal")
    tree.write("class/thermal/thermal_zone1/temp", "48500")
    tree.write("class/hwmon/hwmon2/in2_label", "VDD_CPU_GPU_CV")
    tree.write("class/hwmon/hwmon2/in2_input", "5000")
    tree.write("class/hwmon/hwmon2/curr2_input", "1400")
    source, device = opened(tree, proc, clock)
    assert (device.name, device.vendor) == ("NVIDIA Jetson Orin Nano Developer Kit", "nvidia")
    metrics = source.sample(device)
    assert metrics.utilization.gpu_percent == 43.7
    assert metrics.clocks.graphics_mhz == 918
    assert metrics.thermal.gpu_celsius == 48.5
    assert metrics.power.draw_watts == 7
    assert (metrics.memory.unified, metrics.memory.free_bytes) == (True, 4000000 * 1024)


@pytest.mark.parametrize(
    ("text", "percent"), [("37@800000000Hz", 37), ("37%", 37), ("0", 0), ("busy", None), ("101", None)]
)
def test_devfreq_loads_of_vendor_drivers(tree, proc, clock, text, percent):
    tree.write("devices/platform/fb000000.gpu/keep", "")
    tree.write("class/devfreq/fb000000.gpu/load", text)
    (tree.root / "class/devfreq/fb000000.gpu/device").symlink_to("../../../devices/platform/fb000000.gpu")
    tree.write("class/devfreq/dmc/load", "9@1Hz")  # the memory controller scales too
    source, device = opened(tree, proc, clock)
    metrics = source.sample(device)
    assert metrics.utilization.gpu_percent == percent
    assert (metrics.reason("utilization.gpu_percent") or "out of range").startswith("out of range")


def test_a_sleeping_gpu_stays_asleep_and_is_read_when_it_wakes(tree, proc, clock):
    folder = tree.card(
        driver="nouveau",
        pci_id="10DE:1C82",
        files={"power/runtime_status": "suspended"},
        hwmon={"temp1_input": "44000", "power1_input": "31000000", "fan1_input": "900"},
    )
    source, device = opened(tree, proc, clock)
    asleep = source.sample(device)
    assert (asleep.state, asleep.thermal.gpu_celsius) == ("sleeping", None)
    (folder / "power/runtime_status").write_text("active\n")
    awake = source.sample(device)
    assert (awake.thermal.gpu_celsius, awake.power.draw_watts, awake.thermal.fan_rpm) == (44, 31, 900)


def test_a_lost_device_is_a_state(tree, proc, clock):
    folder = tree.card(driver="nouveau", pci_id="10DE:1C82")
    source, device = opened(tree, proc, clock)
    folder.rename(tree.root / "gone")
    assert source.sample(device).state == "lost"


def test_clients_are_scanned_once_for_all_devices(tree, proc, clock, monkeypatch):
    tree.card(0, "0000:03:00.0", "xe", "8086:E20B")
    tree.card(1, "0000:04:00.0", "xe", "8086:E20B")
    backend = drm_files.open(str(tree.root), str(proc.root), clock)
    scans = []
    monkeypatch.setattr(clients, "scan", lambda proc, pids=None: scans.append(proc) or ({}, 0))
    for device in backend.devices.devices():
        backend.metrics.sample(device)
    assert len(scans) == 1


def test_a_list_that_lacks_the_processes_of_others_is_not_an_empty_one(tree, proc, clock, monkeypatch):
    tree.card(driver="xe", pci_id="8086:E20B")
    proc.client(50, 3, XE.format(client=1, busy=0, total=0))
    listdir = os.listdir

    def refused(path):
        if path.endswith("/50/fd"):
            raise PermissionError(errno.EACCES, "denied")
        return listdir(path)

    monkeypatch.setattr(os, "listdir", refused)
    source, device = opened(tree, proc, clock)
    found = source.sample(device)
    assert found.processes is None
    assert found.reason("processes") == "denied: 1 processes of other users may not be looked into"


def test_every_process_is_searched_every_five_seconds_and_known_ones_each_time(tree, proc, clock):
    tree.card(driver="xe", pci_id="8086:E20B")
    proc.client(50, 3, XE.format(client=1, busy=0, total=0))
    source, device = opened(tree, proc, clock)
    assert [row.pid for row in source.sample(device).processes] == [50]
    proc.client(60, 3, XE.format(client=2, busy=0, total=0))
    proc.client(50, 3, XE.format(client=1, busy=80, total=100))
    clock.now += 1_000_000_000
    known = source.sample(device)
    assert [row.pid for row in known.processes] == [50]
    assert known.utilization.gpu_percent == pytest.approx(80)
    clock.now += 4_500_000_000
    assert {row.pid for row in source.sample(device).processes} == {50, 60}


def test_the_fast_lane_leaves_proc_alone(tree, proc, clock, monkeypatch):
    tree.card(driver="xe", pci_id="8086:E20B")
    source, device = opened(tree, proc, clock)
    monkeypatch.setattr(clients, "scan", lambda proc, pids=None: pytest.fail("scanned"))
    metrics = source.sample(device, ("fast",))
    assert metrics.processes is None
    assert "processes" not in dict(metrics.reasons)


def test_devices_that_ask_at_once_share_one_scan(monkeypatch):
    """A scan that began while another ran was divided by the moment between their beginnings."""
    began, go, scans, found = threading.Event(), threading.Event(), [], []

    def scan(proc, pids=None):
        number = len(scans)
        scans.append(number)
        if number == 1:
            began.set()
            assert go.wait(10)
        busy = (0, 500_000_000, 800_000_000)[number]
        return {("d", "card", "1"): client(engines_ns={"render": busy})}, 0

    monkeypatch.setattr(clients, "scan", scan)
    scanner = clients.Scanner()
    scanner.usage(0, "d", "card")

    def ask(now):
        found.append(scanner.usage(now, "d", "card").engine_totals())

    threads = [threading.Thread(target=ask, args=(now,)) for now in (1_000_000_000, 1_001_000_000)]
    threads[0].start()
    assert began.wait(10)
    threads[1].start()
    threads[1].join(0.2)
    go.set()
    for thread in threads:
        thread.join(10)
    assert found == [{"render": 50.0}] * 2
    assert scans == [0, 1]
