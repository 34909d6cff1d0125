"""AMD cards over made-up sysfs trees: every value, every kind of absence, and what must never be opened."""

import errno
import os
import struct
import threading

import pytest
from support.devices import AMD_HWMON, Proc, Tree

from gpusense._records.protocols import Backend
from gpusense._records.records import Unavailable
from gpusense.backends.amd import sysfs as amd_sysfs
from gpusense.monitor._history import energy_joules

IDS = "# List\n\n1.0.0\n73BF,\tC0,\tAMD Radeon RX 6900 XT\n73BF,\tC1,\tAMD Radeon RX 6800 XT\n15BF,\t00,\tOne Name\n"
ALL = ("fast", "medium", "slow")


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path / "sys")


@pytest.fixture
def ids(tmp_path):
    path = tmp_path / "amdgpu.ids"
    path.write_text(IDS)
    return str(path)


def opened(tree, ids="/nonexistent"):
    backend = amd_sysfs.open(str(tree.root), ids, str(tree.root.parent / "proc"))
    assert isinstance(backend, Backend), backend
    return backend


def sample(tree, *, place=0, lanes=ALL, ids="/nonexistent"):
    backend = opened(tree, ids)
    return backend.metrics.sample(backend.devices.devices()[place], lanes)


def test_without_sysfs_or_an_amd_card_it_is_unavailable_with_the_reason(tmp_path):
    nothing = amd_sysfs.open(str(tmp_path))
    assert isinstance(nothing, Unavailable)
    assert "no graphics driver" in nothing.reason
    tree = Tree(tmp_path / "sys")
    tree.card(driver="i915", pci_id="8086:A780")
    other = amd_sysfs.open(str(tree.root))
    assert isinstance(other, Unavailable)
    assert other.reason.startswith("none of the 1 cards")


def test_a_card_is_described_from_its_files(tree, ids):
    tree.amd()
    (device,) = opened(tree, ids).devices.devices()
    assert device.name == "AMD Radeon RX 6800 XT"
    assert (device.vendor, device.backend, device.pci_bus_id) == ("amd", "amd_sysfs", "0000:03:00.0")
    assert device.memory_total_bytes == 17163091968
    assert (device.clock_max_mhz, device.memory_clock_max_mhz) == (2575, 1000)
    assert (device.kind, device.driver) == ("discrete", "amdgpu")
    assert ("unique_id", "00c0ffee00c0ffee") in device.details


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"revision": "0xc0"}, "AMD Radeon RX 6900 XT"),
        ({"revision": "0x01"}, "AMD GPU [1002:73bf]"),  # a revision the list lacks, and its others differ
        ({"revision": None}, "AMD GPU [1002:73bf]"),
        ({"product_name": "Maker's Name"}, "Maker's Name"),
    ],
)
def test_the_name_is_never_guessed(tree, ids, changes, name):
    tree.amd(**changes)
    assert opened(tree, ids).devices.devices()[0].name == name


def test_one_name_for_all_revisions_serves_an_unknown_one(tree, ids):
    tree.card(pci_id="1002:15BF", files={"revision": "0xdd"})
    assert opened(tree, ids).devices.devices()[0].name == "One Name"


def test_every_value_has_its_unit(tree):
    tree.amd()
    metrics = sample(tree)
    assert (metrics.state, metrics.source) == ("ok", "amd_sysfs")
    assert metrics.utilization.gpu_percent == 42
    assert metrics.utilization.memory_controller_percent == 17
    memory = metrics.memory
    assert (memory.total_bytes, memory.used_bytes, memory.free_bytes) == (17163091968, 4290772992, 12872318976)
    assert (memory.shared_total_bytes, memory.shared_used_bytes, memory.unified) == (8000000000, 120000000, False)
    thermal = metrics.thermal
    assert (thermal.gpu_celsius, thermal.hotspot_celsius, thermal.memory_celsius) == (55, 67, 61)
    assert (thermal.slowdown_celsius, thermal.shutdown_celsius) == (100, 105)
    assert (thermal.fan_rpm, thermal.fan_percent) == (1450, 40)
    assert (metrics.power.draw_watts, metrics.power.average_watts, metrics.power.limit_watts) == (203, 203, 300)
    assert (metrics.clocks.graphics_mhz, metrics.clocks.memory_mhz) == (1795, 1000)
    assert metrics.clocks.performance_state == 1  # the middle of three levels
    pcie = metrics.pcie
    assert (pcie.generation, pcie.width, pcie.max_generation, pcie.max_width) == (4, 16, 4, 16)
    assert (pcie.rx_bytes_per_s, pcie.tx_bytes_per_s, pcie.replay_count) == (256000, 128000, 3)
    assert metrics.cost_ns > 0
    assert metrics.processes == ()


def test_instant_power_and_average_power_are_told_apart(tree):
    tree.amd(**{"hwmon/power1_input": "210500000"})
    metrics = sample(tree)
    assert (metrics.power.draw_watts, metrics.power.average_watts) == (210.5, 203)


def test_where_only_instant_power_exists_the_average_is_unknown(tree):
    tree.amd(**{"hwmon/power1_input": "210500000", "hwmon/power1_average": None})
    metrics = sample(tree)
    assert (metrics.power.draw_watts, metrics.power.average_watts) == (210.5, None)
    assert metrics.reason("power.average_watts") == "unsupported: no file power1_average"


def test_values_change_while_it_runs(tree):
    folder = tree.amd()
    backend = opened(tree)
    device = backend.devices.devices()[0]
    assert backend.metrics.sample(device).utilization.gpu_percent == 42
    (folder / "gpu_busy_percent").write_text("97\n")
    (folder / "hwmon/hwmon0/power1_average").write_text("299000000\n")
    after = backend.metrics.sample(device)
    assert (after.utilization.gpu_percent, after.power.draw_watts) == (97, 299)


@pytest.mark.parametrize(
    ("file", "text", "field", "reason"),
    [
        ("gpu_busy_percent", "655", "utilization.gpu_percent", "out of range: gpu_busy_percent says 655"),
        ("gpu_busy_percent", "garbage", "utilization.gpu_percent", "out of range: gpu_busy_percent says 'garbage'"),
        ("gpu_busy_percent", "nan", "utilization.gpu_percent", "out of range: gpu_busy_percent says nan"),
        ("gpu_busy_percent", "", "utilization.gpu_percent", "unsupported: gpu_busy_percent is empty"),
        ("hwmon/temp3_input", "0", "thermal.memory_celsius", "out of range: temp3_input says 0"),
        ("hwmon/temp1_input", "-273150", "thermal.gpu_celsius", "out of range: temp1_input says -273.15"),
        ("hwmon/power1_cap", "4294967295000", "power.limit_watts", "out of range: power1_cap says 4.29497e+06"),
        ("mem_info_vram_used", None, "memory.used_bytes", "unsupported: no file mem_info_vram_used"),
        ("mem_info_vram_used", None, "memory.free_bytes", "unsupported: needs the total and the used bytes"),
        ("pcie_bw", "1 2", "pcie.tx_bytes_per_s", "unsupported: pcie_bw is not three numbers"),
        ("pp_dpm_sclk", "0: 500Mhz", "clocks.performance_state", "unsupported: pp_dpm_sclk marks no active level"),
        ("hwmon/pwm1", None, "thermal.fan_percent", "unsupported: no file pwm1"),
    ],
)
def test_what_is_unknown_is_none_and_says_why(tree, file, text, field, reason):
    tree.amd(**{file: text})
    metrics = sample(tree)
    group, _, name = field.partition(".")
    assert getattr(getattr(metrics, group), name) is None
    assert metrics.reason(field) == reason


@pytest.mark.parametrize(
    ("levels", "link"),
    [
        ("0: 2.5GT/s, x8 81Mhz\n1: 8.0GT/s, x8 619Mhz *", (3, 8, 3, 8)),  # an x8 card behind its own x16 switch
        ("0: 8.0GT/s, x16 *\n1: 8.0GT/s, x16 *", (3, 16, 3, 16)),
        ("0: 2.5GT/s, x1 78Mhz *\n1: 5.0GT/s, x4 156Mhz\n2: 16.0GT/s, x16 623Mhz", (1, 1, 4, 16)),
        ("0: 2.5GT/s, x1 78Mhz\n1: 16.0GT/s, x16 623Mhz", (5, 16, 4, 16)),  # none active: the port's own
        ("", (5, 16, 5, 16)),
        (None, (5, 16, 5, 16)),
    ],
)
def test_the_link_is_the_slots_and_not_the_cards_inner_one(tree, levels, link):
    tree.amd(pp_dpm_pcie=levels, current_link_speed="32.0 GT/s PCIe", max_link_speed="32.0 GT/s PCIe")
    pcie = sample(tree).pcie
    assert (pcie.generation, pcie.width, pcie.max_generation, pcie.max_width) == link


@pytest.mark.parametrize("speed", ["Unknown", "7.0 GT/s PCIe"])
def test_a_link_speed_no_generation_has_is_none(tree, speed):
    tree.amd(pp_dpm_pcie=None, current_link_speed=speed)
    metrics = sample(tree)
    assert metrics.pcie.generation is None
    assert metrics.reason("pcie.generation") == f"out of range: current_link_speed says {speed!r}"


def test_a_forbidden_file_is_denied(tree, monkeypatch):
    tree.amd()
    backend = opened(tree)
    real = amd_sysfs.sysfs.read

    def read(path, size=4096):
        if path.endswith("gpu_busy_percent"):
            raise PermissionError(errno.EACCES, "made up", path)
        return real(path, size)

    monkeypatch.setattr(amd_sysfs.sysfs, "read", read)
    metrics = backend.metrics.sample(backend.devices.devices()[0])
    assert metrics.reason("utilization.gpu_percent") == "denied: gpu_busy_percent answers EACCES"


def test_a_folder_where_a_file_should_be_is_a_reason(tree):
    folder = tree.amd(gpu_busy_percent=None)
    (folder / "gpu_busy_percent").mkdir()
    assert sample(tree).reason("utilization.gpu_percent") == "stale: gpu_busy_percent answers EISDIR"


def test_a_field_that_another_file_gave_has_no_reason(tree):
    tree.amd(**{"hwmon/freq1_input": None})
    metrics = sample(tree)
    assert metrics.clocks.graphics_mhz == 1800  # the active line of pp_dpm_sclk
    assert "clocks.graphics_mhz" not in dict(metrics.reasons)


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("S: 500Mhz\n1: 789Mhz *\n2: 2070Mhz", 1),  # RDNA4's deep-sleep line is no level
        ("0: 300Mhz \n1: 0Mhz *\n2: 1900Mhz ", 1),
        ("0: 852Mhz *\n1: 991Mhz \n2: 1138Mhz \n3: 1269Mhz ", 3),
    ],
)
def test_levels_of_every_generation(tree, text, state):
    tree.amd(pp_dpm_sclk=text, **{"hwmon/freq1_input": None})
    assert sample(tree).clocks.performance_state == state


def test_a_clock_that_stands_still_is_not_a_measured_zero(tree):
    tree.amd(pp_dpm_mclk="0: 0Mhz *\n1: 456Mhz", **{"hwmon/freq1_input": "0", "hwmon/freq2_input": None})
    metrics = sample(tree)
    assert (metrics.clocks.graphics_mhz, metrics.clocks.memory_mhz) == (None, None)
    assert metrics.reason("clocks.graphics_mhz") == "sleeping: freq1_input is 0, the clock stands still"
    assert (
        metrics.reason("clocks.memory_mhz") == "sleeping: the active level of pp_dpm_mclk is 0, the clock stands still"
    )


def test_of_two_active_levels_nobody_knows_which(tree):
    two = "0: 500Mhz *\n1: 1800Mhz *\n2: 2575Mhz"
    links = "0: 2.5GT/s, x1 81Mhz *\n1: 16.0GT/s, x16 619Mhz *"
    tree.amd(
        pp_dpm_sclk=two, pp_dpm_mclk=two, pp_dpm_pcie=links, **{"hwmon/freq1_input": None, "hwmon/freq2_input": None}
    )
    metrics = sample(tree)
    assert metrics.clocks[:3] == (None, None, None)
    assert metrics.clocks.performance_state is None
    assert metrics.reason("clocks.performance_state") == "out of range: pp_dpm_sclk marks 2 levels as active"
    assert (metrics.pcie.generation, metrics.pcie.width, metrics.pcie.max_generation) == (None, None, 4)
    assert metrics.reason("pcie.width") == "out of range: pp_dpm_pcie marks 2 levels as active"


def metrics_table(gfx=0xFFFF, energy=0xFFFFFFFFFFFFFFFF, clock=123456789, hotspot=0xFFFF, power=0xFFFF):
    """A v1.4 table, the one of Instinct cards: 288 bytes, everything not named "not available"."""
    table = bytearray(b"\xff" * 288)
    struct.pack_into("<HBB", table, 0, 288, 1, 4)
    struct.pack_into("<H", table, 4, hotspot)
    struct.pack_into("<HH", table, 10, power, gfx)
    struct.pack_into("<QQ", table, 24, energy, clock)
    return bytes(table)


def test_the_table_gives_energy_and_fills_what_files_lack(tree):
    tree.amd(
        gpu_metrics=metrics_table(gfx=64, energy=3 << 16, hotspot=71, power=540),
        gpu_busy_percent=None,
        **{"hwmon/power1_average": None, "hwmon/temp2_label": None, "hwmon/temp2_input": None},
    )
    metrics = sample(tree)
    assert metrics.power.energy_joules == 3
    assert metrics.power.draw_watts == 540
    assert metrics.utilization.gpu_percent == 64
    assert metrics.thermal.hotspot_celsius == 71
    assert metrics.source_time_ns == 123456789


def test_the_energy_counter_is_read_anew_each_time(tree):
    folder = tree.amd(gpu_metrics=metrics_table(energy=3 << 16))
    backend = opened(tree)
    (device,) = backend.devices.devices()
    assert backend.metrics.sample(device).power.energy_joules == 3
    (folder / "gpu_metrics").write_bytes(metrics_table(energy=8 << 16))
    assert backend.metrics.sample(device).power.energy_joules == 8


def test_a_windows_energy_is_the_counters(tree):
    """Without the time of its reading the counter was not believed, and power was integrated instead."""
    folder = tree.amd(gpu_metrics=metrics_table(energy=3 << 16))
    backend = opened(tree)
    (device,) = backend.devices.devices()
    samples = [backend.metrics.sample(device)]
    (folder / "gpu_metrics").write_bytes(metrics_table(energy=8 << 16))
    samples.append(backend.metrics.sample(device))
    joules, method, _ = energy_joules(samples, 10**9)
    assert joules == pytest.approx(5)
    assert method.startswith("counter")


@pytest.mark.parametrize("revision", ["", "unknown", "0xZZ"])
def test_a_revision_that_is_no_number_hides_no_card(tree, revision, tmp_path):
    ids = tmp_path / "amdgpu.ids"
    ids.write_text("73BF, C1, AMD Radeon RX 6800 XT\n")
    tree.card(pci_id="1002:73BF", files={"revision": revision})
    assert sample(tree, ids=str(ids)).device.name == "AMD Radeon RX 6800 XT"


@pytest.mark.parametrize(("pci_id", "joules"), [("1002:740F", 2), ("1002:73BF", None)])
def test_the_older_tables_energy_is_believed_on_instinct_cards_alone(tree, pci_id, joules):
    table = bytearray(b"\xff" * 120)
    struct.pack_into("<HBB", table, 0, 120, 1, 3)
    struct.pack_into("<Q", table, 24, 2 << 16)
    tree.card(pci_id=pci_id, files={"gpu_metrics": bytes(table)})
    metrics = sample(tree)
    assert metrics.power.energy_joules == joules
    if joules is None:
        assert metrics.reason("power.energy_joules") == "unsupported: gpu_metrics v1.3 counts energy in no known unit"


def test_a_sentinel_in_the_table_is_no_value(tree):
    tree.amd(gpu_metrics=metrics_table(gfx=0xFFFF), gpu_busy_percent=None)
    metrics = sample(tree)
    assert metrics.utilization.gpu_percent is None
    assert metrics.reason("utilization.gpu_percent") == "unsupported: no file gpu_busy_percent"


def test_an_unknown_table_is_the_reason_of_what_only_it_has(tree):
    tree.amd(gpu_metrics=struct.pack("<HBB", 4, 9, 9))
    assert sample(tree).reason("power.energy_joules") == "unsupported: gpu_metrics v9.9 is not known"


def test_no_file_is_read_twice_in_a_sample(tree, monkeypatch):
    tree.amd(gpu_metrics=metrics_table())
    backend = opened(tree)
    read = []
    monkeypatch.setattr(
        amd_sysfs.sysfs,
        "read",
        lambda path, size=4096, real=amd_sysfs.sysfs.read: (read.append(path), real(path, size))[1],
    )
    backend.metrics.sample(backend.devices.devices()[0], ALL)
    assert len(read) > 20
    assert sorted(read) == sorted(set(read))


def fifo_opened(path):
    """A pipe in place of the file; the event is set once anybody opens it, who then gets ``text``."""
    os.mkfifo(path)
    event = threading.Event()

    def wait():
        with open(path, "w") as pipe:  # returns when somebody reads
            event.set()
            pipe.write("1 1 1\n")

    threading.Thread(target=wait, daemon=True).start()
    return event


@pytest.mark.timeout(20)
def test_the_slow_counter_is_read_in_the_slow_lane_alone(tree):
    folder = tree.amd(pcie_bw=None)
    event = fifo_opened(folder / "pcie_bw")
    metrics = sample(tree, lanes=("fast", "medium"))
    assert not event.is_set()
    assert "pcie.rx_bytes_per_s" not in dict(metrics.reasons)  # the lane that reads it will say
    assert sample(tree, lanes=("slow",)).pcie.rx_bytes_per_s == 1
    assert event.is_set()


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("asleep", "reason"),
    [
        ({"power/runtime_status": "suspended"}, "sleeping: power/runtime_status is suspended"),
        ({"power/runtime_status": "suspending"}, "sleeping: power/runtime_status is suspending"),
        ({"power/runtime_status": "active", "power_state": "D3cold"}, "sleeping: power_state is D3cold"),
        ({"power/runtime_status": None, "power_state": "D3hot"}, "sleeping: power_state is D3hot"),
    ],
)
def test_a_sleeping_card_is_reported_and_nothing_else_of_it_opened(tree, asleep, reason):
    kept = {"revision", "power/runtime_status", "power_state"}
    names = [name for name in (*tree_files(), *(f"hwmon/{name}" for name in AMD_HWMON)) if name not in kept]
    folder = tree.amd(**dict.fromkeys(names), **asleep)
    (folder / "hwmon/hwmon0").mkdir(parents=True)
    events = {}
    for name in names:
        path = folder / name.replace("hwmon/", "hwmon/hwmon0/", 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        events[name] = fifo_opened(path)
    backend = opened(tree)
    (device,) = backend.devices.devices()
    metrics = backend.metrics.sample(device, ALL)
    assert metrics.state == "sleeping"
    assert metrics.reason("power.draw_watts") == reason
    assert [name for name, event in events.items() if event.is_set()] == []


def tree_files():
    from support.devices import AMD_FILES

    return (*AMD_FILES, "gpu_metrics", "product_name")


def test_a_card_that_wakes_is_read_and_sleeps_again(tree):
    folder = tree.amd(power__runtime_status="suspended")
    backend = opened(tree)
    (device,) = backend.devices.devices()
    assert device.memory_total_bytes is None
    assert backend.metrics.sample(device).state == "sleeping"
    (folder / "power/runtime_status").write_text("active\n")
    awake = backend.metrics.sample(device)
    assert (awake.state, awake.thermal.gpu_celsius) == ("ok", 55)
    assert backend.devices.devices()[0].memory_total_bytes == 17163091968
    (folder / "power/runtime_status").write_text("suspended\n")
    assert backend.metrics.sample(device).state == "sleeping"


def test_a_lost_card_is_lost_and_the_other_goes_on(tree):
    lost = tree.amd(0, "0000:03:00.0")
    tree.amd(1, "0000:0a:00.0", gpu_busy_percent="5")
    backend = opened(tree)
    first, second = backend.devices.devices()
    lost.rename(tree.root / "gone")
    metrics = backend.metrics.sample(first)
    assert (metrics.state, metrics.reason("power.draw_watts")) == ("lost", "lost: its folder in sysfs is gone")
    assert backend.metrics.sample(second).utilization.gpu_percent == 5
    (tree.root / "gone").rename(lost)
    assert backend.metrics.sample(first).utilization.gpu_percent == 42


def test_a_reloaded_driver_may_give_hwmon_another_number(tree):
    folder = tree.amd()
    backend = opened(tree)
    (device,) = backend.devices.devices()
    (folder / "hwmon/hwmon0").rename(folder / "hwmon/hwmon7")
    assert backend.metrics.sample(device).thermal.gpu_celsius == 55


def test_a_card_that_is_plugged_in_is_found_and_one_that_went_stays_as_lost(tree):
    tree.amd(0, "0000:03:00.0")
    backend = amd_sysfs.open(str(tree.root), "", str(tree.root))
    (first,) = backend.devices.devices()
    (tree.root / "class/drm/card0").unlink()
    tree.amd(1, "0000:0a:00.0")
    backend.metrics.rescan()
    assert [device.pci_bus_id for device in backend.devices.devices()] == ["0000:03:00.0", "0000:0a:00.0"]
    assert [backend.metrics.sample(device).state for device in backend.devices.devices()] == ["lost", "ok"]
    (tree.root / "class/drm/card2").symlink_to("../../devices/pci0000:00/0000:03:00.0/drm/card0")  # another number
    backend.metrics.rescan()
    assert backend.metrics.sample(first).state == "ok"


def test_cards_are_ordered_and_keyed_by_pci_address(tree):
    tree.amd(1, "0000:03:00.0", gpu_busy_percent="1")
    tree.amd(0, "0000:0a:00.0", gpu_busy_percent="2")
    backend = opened(tree)
    assert [(device.index, device.pci_bus_id) for device in backend.devices.devices()] == [
        (0, "0000:03:00.0"),
        (1, "0000:0a:00.0"),
    ]
    busy = [backend.metrics.sample(device).utilization.gpu_percent for device in backend.devices.devices()]
    assert busy == [1, 2]


def test_an_apu_is_integrated_and_its_memory_unified(tree):
    tree.amd(**{"hwmon/in1_label": "vddnb"})
    assert opened(tree).devices.devices()[0].kind == "integrated"
    assert sample(tree).memory.unified is True


def test_a_radeon_card_without_labels_has_its_one_temperature(tree):
    tree.card(driver="radeon", pci_id="1002:6818", hwmon={"temp1_input": "27000", "temp1_crit": "120000"})
    metrics = sample(tree)
    assert (metrics.thermal.gpu_celsius, metrics.thermal.slowdown_celsius) == (27, 120)
    assert metrics.reason("thermal.hotspot_celsius") == "unsupported: the card has no such sensor"


def test_memory_errors_are_counted_in_the_slow_lane(tree):
    tree.amd(ras__umc_err_count="ue: 2\nce: 11")
    metrics = sample(tree)
    assert (metrics.health.ecc_uncorrected, metrics.health.ecc_corrected) == (2, 11)


def test_processes_come_from_drm_clients(tree):
    tree.amd()
    proc = Proc(tree.root.parent / "proc")
    text = "drm-driver:\tamdgpu\ndrm-client-id:\t{}\ndrm-pdev:\t{}\ndrm-memory-vram:\t2048 KiB\n"
    proc.client(70, 5, text.format(1, "0000:03:00.0"), "train")
    proc.client(71, 5, text.format(2, "0000:0a:00.0"), "other card")
    (process,) = sample(tree).processes
    assert (process.pid, process.name, process.memory_used_bytes) == (70, "train", 2 << 20)


def test_a_lane_reads_its_own_files_and_says_nothing_of_the_others(tree):
    tree.amd()
    medium = sample(tree, lanes=("medium",))
    assert (medium.memory.total_bytes, medium.memory.used_bytes, medium.utilization.gpu_percent) == (
        17163091968,
        None,
        None,
    )
    fast = sample(tree, lanes=("fast",))
    assert (fast.utilization.gpu_percent, fast.thermal.fan_rpm, fast.processes) == (42, None, None)
    assert not {"thermal.fan_rpm", "processes"} & dict(fast.reasons).keys()
    assert not {"utilization.gpu_percent", "memory.used_bytes"} & dict(medium.reasons).keys()


def test_every_reason_begins_with_one_of_the_six_words(tree):
    tree.card()
    words = ("unsupported", "denied", "sleeping", "lost", "stale", "out of range")
    assert {why.partition(":")[0] for _, why in sample(tree).reasons} <= set(words)


@pytest.mark.parametrize("text", ["inf", "nan", "1e400", "9" * 400, "-inf"])
def test_a_file_that_says_no_number_of_this_world_is_out_of_range(tree, text):
    tree.amd(mem_info_vram_used=text, mem_info_gtt_total=text, hwmon__fan1_input=text, pcie_replay_count=text)
    found = sample(tree)
    for field in ("memory.used_bytes", "memory.shared_total_bytes", "thermal.fan_rpm", "pcie.replay_count"):
        assert found.reason(field).startswith("out of range: "), field
    assert found.memory.total_bytes == 17163091968
