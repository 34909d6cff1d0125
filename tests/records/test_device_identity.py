"""One entry a physical device over all sources, and CUDA_VISIBLE_DEVICES in all its forms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusense._records.device_identity import (
    Visible,
    device_of,
    device_text,
    known_as,
    may_be,
    merge,
    merged,
    normal_pci,
    number_of,
    same,
    select,
    visible,
)
from gpusense._records.records import DeviceInfo

A, B, C = (f"GPU-{letter * 8}-1111-2222-3333-444444444444" for letter in "abc")
MIG = "MIG-12345678-aaaa-bbbb-cccc-dddddddddddd"


def gpu(index: int, uuid: str | None = None, pci: str | None = None, **more) -> DeviceInfo:
    return DeviceInfo(
        index, **{"name": "NVIDIA L4", "vendor": "nvidia", "backend": "nvml", "uuid": uuid, "pci_bus_id": pci, **more}
    )


THREE = (gpu(0, A), gpu(1, B), gpu(2, C))


def places(value: str | None, devices=THREE, instances=None) -> list[int | None]:
    return [item.place for item in visible(value, devices, instances)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, [0, 1, 2]),
        ("", []),
        (" ", []),
        ("0", [0]),
        ("2,0", [2, 0]),
        (" 1 , 2 ", [1, 2]),
        ("1,-1,2", [1]),  # the first invalid entry ends the list
        ("-1", []),
        ("0,3,1", [0]),  # out of range
        ("99999999999999999999", []),
        ("1gpu2,2ampere", [1, 2]),  # read as strtoul reads it
        ("+1", [1]),
        ("0,x,1", [0]),
        ("NoDevFiles", []),
        ("0,0", []),  # a device twice leaves none
        ("0,1,0", []),
        (A, [0]),
        (f"{C},{A}", [2, 0]),
        (A.upper(), [0]),
        ("GPU-bbbb", [1]),  # an unambiguous beginning
        ("GPU-", []),  # an ambiguous one
        ("GPU-ffff", []),
        (f"{B},GPU-ffff,{A}", [1]),
        (f"{A},GPU-aaaa", []),  # twice, under two names
        (f"{A},1", [0, 1]),
    ],
)
def test_every_form_of_cuda_visible_devices(value, expected):
    assert places(value) == expected


def test_mig_instances_are_named_by_uuid_prefix_or_the_old_form():
    assert visible(MIG, THREE, {MIG: 1}) == (Visible(1, MIG),)
    assert visible("MIG-1234", THREE, {MIG: 1}) == (Visible(1, MIG),)
    assert visible(f"MIG-{C}/3/0", THREE) == (Visible(2, f"MIG-{C}/3/0"),)
    assert visible(MIG, THREE) == (Visible(None, MIG),)  # nobody knows its parent
    other = MIG.replace("12345678", "12345679")
    assert visible("MIG-1234567", THREE, {MIG: 0, other: 1}) == ()  # ambiguous
    assert visible(f"{MIG},{other}", THREE, {MIG: 0, other: 1}) == (Visible(0, MIG),)  # CUDA uses one instance
    assert visible(f"0,{MIG}", THREE, {MIG: 1}) == (Visible(0),)


@given(st.text(alphabet="0123456789,-+ GPUMIabc/", max_size=40))
def test_any_text_gives_distinct_devices_or_none(value):
    found = visible(value, THREE)
    assert len(set(found)) == len(found)
    assert all(item.place is None or 0 <= item.place < 3 for item in found)


@given(st.permutations(range(8)))
def test_ordinals_keep_their_order(order):
    devices = tuple(gpu(i) for i in range(8))
    assert places(",".join(map(str, order)), devices) == list(order)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00000000:1B:00.0", "0000:1b:00.0"),
        ("0000:1b:00.0", "0000:1b:00.0"),
        ("1b:00.0", "0000:1b:00.0"),
        ("10000:01:00.0", "10000:01:00.0"),  # a domain of five digits behind a VMD controller
        (None, None),
        ("", None),
        ("rubbish", None),
    ],
)
def test_pci_addresses_have_one_spelling(text, expected):
    assert normal_pci(text) == expected


def test_sources_are_joined_by_address_or_uuid():
    cuda = gpu(0, A, "0000:1b:00.0", backend="cuda", cuda_index=0, sm_count=132)
    nvml = gpu(5, A, "00000000:1B:00.0", nvml_index=5, driver="580", details=(("serial", "1"),))
    files = gpu(0, None, "0000:1b:00.0", backend="drm_files", driver="nvidia", kind="discrete")
    (device,) = merge({"drm_files": [files], "nvml": [nvml], "cuda": [cuda]})
    assert (device.backend, device.cuda_index, device.nvml_index, device.sm_count) == ("cuda", 0, 5, 132)
    assert (device.driver, device.kind, device.pci_bus_id) == ("580", "discrete", "0000:1b:00.0")
    assert device.sources == ("cuda", "nvml", "drm_files")
    assert device.details == (("serial", "1"),)


def test_cuda_order_comes_first_and_nvml_order_otherwise():
    """Fastest first is CUDA's default, PCI order NVML's: never assume that they agree."""
    nvml = [
        gpu(0, A, "0000:01:00.0", nvml_index=0),
        gpu(1, B, "0000:02:00.0", nvml_index=1),
        gpu(2, C, "0000:03:00.0", nvml_index=2),
    ]
    cuda = [gpu(0, C, "0000:03:00.0", cuda_index=0), gpu(1, A, "0000:01:00.0", cuda_index=1)]
    live = merge({"nvml": nvml, "cuda": cuda})
    assert [device.uuid for device in live] == [C, A, B]
    assert [device.index for device in live] == [0, 1, 2]
    assert [device.nvml_index for device in live] == [2, 0, 1]
    assert [device.uuid for device in merge({"nvml": nvml})] == [A, B, C]


def test_vendors_stand_side_by_side():
    nvml = gpu(0, A, "0000:41:00.0", nvml_index=0)
    amd = DeviceInfo(0, "AMD Radeon", "amd", "amd_sysfs", pci_bus_id="0000:03:00.0")
    smi = DeviceInfo(0, "Navi 21", "amd", "rocm_smi", pci_bus_id="0000:03:00.0")
    merged = merge({"rocm_smi": [smi], "amd_sysfs": [amd], "nvml": [nvml]})
    assert [device.name for device in merged] == ["NVIDIA L4", "AMD Radeon"]
    assert merged[1].sources == ("amd_sysfs", "rocm_smi")


def test_an_adapter_without_address_joins_the_only_device_of_its_name():
    nvml = gpu(0, A, "0000:01:00.0")
    vulkan = DeviceInfo(0, "NVIDIA L4", "nvidia", "wgpu")
    (device,) = merge({"nvml": [nvml], "wgpu": [vulkan]})
    assert device.sources == ("nvml", "wgpu")
    twins = [nvml, gpu(1, B, "0000:02:00.0")]
    assert len(merge({"nvml": twins, "wgpu": [vulkan]})) == 3  # which of the two it is, nobody knows


def test_a_mig_instance_of_cuda_is_a_detail_of_its_device():
    cuda = gpu(0, MIG, "0000:01:00.0", cuda_index=0, memory_total_bytes=10, name="NVIDIA H100 MIG 1g.10gb")
    nvml = gpu(0, A, "0000:01:00.0", memory_total_bytes=80, name="NVIDIA H100")
    (device,) = merge({"cuda": [cuda], "nvml": [nvml]})
    assert (device.uuid, device.name, device.memory_total_bytes) == (A, "NVIDIA H100", 80)
    assert ("mig_uuid", MIG) in device.details


def test_no_devices_merge_to_none():
    assert merge({}) == ()
    assert merge({"nvml": []}) == ()


def test_two_devices_without_any_key_are_not_the_same():
    assert not same(gpu(0), gpu(1))


def test_select_names_devices():
    devices = (gpu(0, A, "0000:01:00.0"), gpu(1, B, "0000:02:00.0"))
    assert select(1, devices) == (devices[1],)
    assert select("GPU-a", devices) == (devices[0],)
    assert select("00000000:02:00.0", devices) == (devices[1],)
    assert select([1, "0"], devices) == devices
    with pytest.raises(ValueError, match="names no device; there are: 0: GPU-a"):
        select(7, devices)
    with pytest.raises(ValueError, match="names 2 devices"):
        select("GPU-", devices)


ONE, TWO = "0000:01:00.0", "0000:02:00.0"


def test_an_entry_is_known_by_what_it_is_and_not_by_its_place():
    cuda = (gpu(0, B, TWO, cuda_index=0), gpu(1, A, ONE, cuda_index=1))
    assert known_as(gpu(0, A, ONE), cuda) is cuda[1]
    assert known_as(gpu(0, None, "00000000:01:00.0"), cuda) is cuda[1]
    assert known_as(gpu(0, A), cuda) is cuda[1]
    assert known_as(gpu(0, C, "0000:03:00.0"), cuda) is None
    assert known_as(gpu(0), cuda) is None
    assert known_as(gpu(0, C, ONE), cuda) is None  # the same slot of another machine
    assert known_as(gpu(5, MIG, ONE), cuda) is cuda[1]
    instance = gpu(0, MIG, ONE, cuda_index=0)
    assert known_as(gpu(1, A, ONE), (gpu(1, A, ONE), instance)) is instance
    nameless = (gpu(0), gpu(1), gpu(2, name="NVIDIA T4"))
    assert known_as(gpu(1), nameless) is nameless[1]
    assert known_as(gpu(1, name="NVIDIA T4"), nameless) is None


def test_entries_may_be_one_where_nothing_says_that_they_are_two():
    cpu = DeviceInfo(0, "llvmpipe (LLVM 15)", "unknown", "wgpu", kind="cpu")
    assert may_be(gpu(0), gpu(3, A, ONE))
    assert may_be(gpu(0, A), gpu(1, None, ONE))
    assert may_be(gpu(0, MIG), gpu(0, A))
    assert may_be(gpu(0, A, ONE), gpu(0, MIG, ONE))
    assert not may_be(gpu(0, A), gpu(0, B))
    assert not may_be(gpu(0, None, ONE), gpu(0, None, TWO))
    assert not may_be(gpu(0, A), cpu)
    assert not may_be(gpu(0), DeviceInfo(0, "Arc", "intel", "drm_files"))


def test_a_number_of_cuda_s_is_an_ordinal():
    shown = gpu(1, B, TWO, cuda_index=0)
    hidden = gpu(0, A, ONE)
    assert device_of((hidden, shown), "cuda", 0) is shown
    assert device_of((hidden, shown), "cuda", 1) is None  # and not the one at that place
    assert device_of((hidden,), "cuda", 0) is hidden  # nobody knows ordinals: places are all there is
    behind = gpu(1, A, ONE, backend="wgpu")  # a card that CUDA does not have
    assert device_of((shown, behind), "wgpu", 1) is behind
    assert [number_of(one) for one in (shown, behind)] == [0, 1]


def test_work_without_a_number_is_on_the_only_device_that_it_can_be_on():
    card, adapter = gpu(0, A, ONE, backend="cuda", cuda_index=0), gpu(0, backend="wgpu")
    assert device_of((card,), "cuda", None) is card
    assert device_of((adapter,), "wgpu", None) is adapter
    assert device_of((card,), "host", None) is None
    assert device_of((card, adapter), "cuda", None) is None
    assert device_of((card,), "wgpu", None) is None  # wgpu could not tell whether it is CUDA's


def test_devices_have_names_to_read():
    cpu = DeviceInfo(1, "llvmpipe (LLVM 15.0.7, 256 bits)", "unknown", "wgpu", kind="cpu")
    devices = (gpu(0, A, cuda_index=0), cpu)
    assert device_text(devices, "cuda", 0) == "GPU 0"
    assert device_text(devices, "wgpu", 1) == "CPU (llvmpipe)"
    assert device_text(devices, "wgpu", None) == "GPU (wgpu)"
    assert device_text(devices, "cuda", None) == "GPU"
    assert device_text((cpu,), "wgpu", None) == "CPU (llvmpipe)"
    assert device_text((), "cuda", 3) == "GPU 3"
    swift = cpu._replace(name="SwiftShader Device (Subzero)")
    assert device_text((swift,), "wgpu", 1) == "CPU (SwiftShader Device)"


def test_joined_devices_say_what_they_were_joined_of():
    twins = [gpu(0), gpu(1)]
    rows = merged({"drm_files": twins, "nvml": [gpu(0, A, ONE, name="NVIDIA T4")]})
    assert [(device.index, entries) for device, entries in rows] == [
        (0, [("nvml", gpu(0, A, ONE, name="NVIDIA T4"))]),
        (1, [("drm_files", twins[0])]),
        (2, [("drm_files", twins[1])]),
    ]
