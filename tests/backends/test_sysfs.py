"""What /sys and /proc say, in folders laid out by the test."""

import errno
import os

import pytest

from gpusense.backends import sysfs

ADDRESS = "0000:65:00.0"


@pytest.fixture
def device(tmp_path):
    """The folder of one NVIDIA display device on the PCI bus below ``tmp_path``."""
    folder = tmp_path / "bus/pci/devices" / ADDRESS
    (folder / "power").mkdir(parents=True)
    (folder / "class").write_text("0x030200\n")
    (folder / "vendor").write_text("0x10de\n")
    return folder


def test_text_is_stripped_and_what_is_empty_or_missing_is_none(tmp_path):
    (tmp_path / "name").write_bytes(b" amdgpu \n\0")
    (tmp_path / "empty").write_text("\n")
    assert sysfs.text_or_none(str(tmp_path / "name")) == "amdgpu"
    assert sysfs.text_or_none(str(tmp_path / "empty")) is None
    assert sysfs.text_or_none(str(tmp_path / "none")) is None


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOENT, "unsupported: no file fan1_input"),
        (errno.ENODEV, "lost: fan1_input answers ENODEV"),
        (errno.EACCES, "denied: fan1_input answers EACCES"),
        (errno.EINVAL, "unsupported: fan1_input answers EINVAL"),
        (errno.EIO, "stale: fan1_input answers EIO"),
        (None, "stale: fan1_input answers an unknown error"),
    ],
)
def test_each_error_has_a_word_for_its_class(number, reason):
    error = OSError(number, "text") if number is not None else OSError("text")
    assert sysfs.why(error, "/sys/hwmon/fan1_input") == reason


@pytest.mark.parametrize(
    ("speed", "generation"),
    [("2.5", 1), ("16.0", 4), (32.0, 5), (64e9 / 1e9, 6), ("", None), (None, None), ("unknown", None), (7.0, None)],
)
def test_a_links_speed_says_its_generation(speed, generation):
    assert sysfs.pcie_generation(speed) == generation


@pytest.mark.parametrize(
    ("status", "state", "reason"),
    [
        ("active", "D0", None),
        ("suspended", "D0", "sleeping: power/runtime_status is suspended"),
        ("resuming", "D0", "sleeping: power/runtime_status is resuming"),
        ("active", "D3cold", "sleeping: power_state is D3cold"),
    ],
)
def test_a_sleeping_device_is_known_without_touching_it(device, tmp_path, status, state, reason):
    (device / "power/runtime_status").write_text(status)
    (device / "power_state").write_text(state)
    assert sysfs.asleep(ADDRESS, str(tmp_path)) == reason
    assert sysfs.asleep(None, str(tmp_path)) is None


def test_a_device_that_is_always_on_never_sleeps(device, tmp_path):
    assert not sysfs.may_sleep(ADDRESS, str(tmp_path))  # no file
    (device / "power/control").write_text("auto")
    assert sysfs.may_sleep(ADDRESS, str(tmp_path))
    (device / "power/control").write_text("on")
    assert not sysfs.may_sleep(ADDRESS, str(tmp_path))
    assert not sysfs.may_sleep(None, str(tmp_path))
    said = tmp_path / "driver/nvidia/gpus" / ADDRESS / "power"
    said.parent.mkdir(parents=True)
    for text, never in (("Disabled by default", True), ("Not supported", True), ("Enabled (fine-grained)", False)):
        said.write_text(f"Runtime D3 status:          {text}\nVideo Memory: Active\n")
        assert sysfs.never_sleeps(ADDRESS, str(tmp_path)) is never
    assert not sysfs.never_sleeps("0000:01:00.0", str(tmp_path))


def test_display_devices_of_one_vendor_are_listed(device, tmp_path):
    audio = device.with_name("0000:65:00.1")
    audio.mkdir()
    (audio / "class").write_text("0x040300")
    (audio / "vendor").write_text("0x10de")
    assert sysfs.pci_gpus(0x10DE, str(tmp_path)) == [ADDRESS]
    assert sysfs.pci_gpus(0x1002, str(tmp_path)) == []
    assert sysfs.pci_gpus(0x10DE, str(tmp_path / "none")) == []


def test_memory_of_the_system(tmp_path):
    assert sysfs.meminfo(str(tmp_path)) is None
    (tmp_path / "meminfo").write_text("MemTotal:  100 kB\nMemFree: 20 kB\n")
    assert sysfs.meminfo(str(tmp_path)) == (102_400, 20_480)
    (tmp_path / "meminfo").write_text("MemTotal:  100 kB\nMemFree: 20 kB\nMemAvailable: 60 kB\nHugePages: none\n")
    assert sysfs.meminfo(str(tmp_path)) == (102_400, 61_440)


def test_cards_are_in_the_order_of_their_numbers(tmp_path):
    assert "no graphics driver loaded" in sysfs.cards(str(tmp_path))
    for name in ("card10", "card2", "renderD128", "card2-DP-1"):
        (tmp_path / "class/drm" / name).mkdir(parents=True)
    assert [name for name, _ in sysfs.cards(str(tmp_path))] == ["card2", "card10"]


def test_a_reader_keeps_why_a_field_has_no_value(tmp_path):
    for name, text in {"good": "42 W", "word": "many", "huge": "1e30", "void": ""}.items():
        (tmp_path / name).write_text(text)
    reader = sysfs.Reader(str(tmp_path))
    assert reader.number("power.draw_watts", "good", per=2) == 21
    assert reader.whole("a.a", "good") == 42
    assert reader.number("b.b", "word") is None
    assert reader.number("c.c", "huge", high=100) is None
    assert reader.text("d.d", "void") is None
    assert reader.first("e.e", ("none", "good")) == 42
    assert reader.first("f.f", ("none", "word")) is None
    assert reader.reasons == {
        "b.b": "out of range: word says 'many'",
        "c.c": "out of range: huge says 1e+30",
        "d.d": "unsupported: void is empty",
        "e.e": "unsupported: no file none",
        "f.f": "out of range: word says 'many'",
    }
    reader.note("f.f", "kept as it is")
    assert reader.reasons["f.f"] == "out of range: word says 'many'"


def test_one_read_gives_what_one_answer_has(tmp_path):
    (tmp_path / "long").write_bytes(b"x" * 100)
    assert sysfs.read(str(tmp_path / "long"), 10) == b"x" * 10


@pytest.mark.skipif(not os.path.exists("/proc/self/comm"), reason="there is no /proc")
def test_a_process_has_a_name():
    assert sysfs.process_name(os.getpid())
    assert sysfs.process_name(2**22 + 1) is None
