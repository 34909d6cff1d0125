"""One card is one card: an adapter is the device that CUDA and NVML know, with one number and one busy time."""

import pytest
from support.wgpu_traced import Recording

import gpusense
from gpusense._aggregation.busy import Busy
from gpusense._records.records import Aggregate, DeviceBusy, DeviceInfo, GpuKernel, GpuMemoryTransfer
from gpusense.analysis.busy import device_times, timelines
from gpusense.analysis.idle import idle
from gpusense.analysis.launch import launches
from gpusense.backends.wgpu.source import numbered
from gpusense.backends.wgpu.vulkan import Card
from gpusense.integrations import wgpu_py
from gpusense.session import Session

H100, ARC, LLVM = (
    Card("NVIDIA H100", 0x10DE, 0x2330, 1.0, 64, (), "0000:1b:00.0", "1" * 8, kind="discrete"),
    Card("Intel Arc", 0x8086, 0x56A0, 52.0, 36, (), "0000:03:00.0", kind="integrated"),
    Card("llvmpipe (LLVM 15)", 0x10005, 0, 1.0, 64, (), kind="cpu"),
)
OTHER = H100._replace(pci_bus_id="0000:0a:00.0", uuid="2" * 8)


def cuda(ordinal: int, address: str) -> DeviceInfo:
    return DeviceInfo(ordinal, "H100", "nvidia", "cuda", pci_bus_id=address, cuda_index=ordinal)


def test_cards_have_the_numbers_of_cuda() -> None:
    """Also where CUDA_VISIBLE_DEVICES turned them round; a card that CUDA does not see comes after."""
    both = (cuda(0, "0000:1B:00.0"), cuda(1, "0000:0a:00.0"))
    assert [one.index for one in numbered((LLVM, OTHER, ARC, H100), both)] == [3, 1, 2, 0]
    assert [one.index for one in numbered((LLVM, OTHER, ARC, H100), both[:1])] == [3, 1, 2, 0]
    assert [one.name for one in numbered((H100,), both)] == ["H100"]


def test_without_cuda_nvidias_cards_come_first_as_nvml_has_them() -> None:
    found = numbered((LLVM, H100, ARC, OTHER), ())
    assert [one.index for one in found] == [3, 1, 2, 0]
    assert [one.kind for one in found] == ["cpu", "discrete", "integrated", "discrete"]
    assert [one.nvml_index for one in found] == [None] * 4


def test_the_software_card_is_a_processor(recording, programs) -> None:
    work = programs.Compute(programs.device())
    work.write()
    work.run(label="x")
    work.read()
    assert {record.device for record in recording.of(GpuKernel) + recording.of(GpuMemoryTransfer)} == {0}
    (device,) = wgpu_py._installed.now.hooks.source.used_devices()[:1]
    assert (device.index, device.kind) == (0, "cpu")
    (listed,) = [one for one in gpusense.devices() if one.name == device.name]
    assert (listed.index, listed.kind, listed.vendor) == (device.index, device.kind, device.vendor)


def test_a_session_lists_the_device(wgpu, programs) -> None:
    gpusense.enable()
    try:
        assert wgpu_py.instrument() is True
        programs.Compute(programs.device()).run(label="x")
        assert wgpu_py.flush(10)
        session = gpusense.get_tracer().session()
        assert [(one.index, one.kind) for one in session.devices] == [(0, "cpu")]
    finally:
        wgpu_py.uninstrument()
        gpusense.disable()


def test_two_adapters_of_one_card_are_one_device(wgpu, programs) -> None:
    found = [one for one in wgpu.gpu.enumerate_adapters_sync() if "timestamp-query" in one.features]
    if len({one.info["backend_type"] for one in found}) < 2:
        pytest.skip("one backend only")
    made = Recording()
    wgpu_py.instrument(emit=made.records.extend)
    try:
        for adapter in found:
            programs.Compute(adapter.request_device_sync()).run()
        assert {record.device for record in made.of(GpuKernel)} == {0}
    finally:
        wgpu_py.uninstrument()


def test_busy_time_of_a_card_is_one_union_over_its_backends() -> None:
    busy = Busy()
    busy.add("wgpu", 0, True, [0, 100], [50, 150])
    busy.add("cuda", 0, True, [25], [75])
    busy.add("wgpu", 1, True, [0], [10])
    busy.add("wgpu", None, True, [0], [10])
    busy.add("opencl", 0, True, [0], [10])
    rows = {(row.backend, row.device): row.busy_ns for row in busy.rows()}
    assert rows == {("cuda", 0): 125, ("wgpu", 1): 10, ("wgpu", None): 10, ("opencl", 0): 10}


@pytest.mark.parametrize("counted", [False, True])
def test_analyses_see_one_device(counted: bool) -> None:
    kernel = [GpuKernel("k", 0, 400, device=0), GpuKernel("pass", 200, 600, device=0, backend="wgpu")]
    if counted:
        rows = [Aggregate((), "kernel", one.name, one.backend, 0, None, 1, 400, 400, 400, 160_000) for one in kernel]
        session = Session(aggregates=rows, busy=[DeviceBusy(0, 600, 0, 600, 0, 600)])
    else:
        session = Session(records=list(kernel))
    session.meta.update(start_ns=0, end_ns=1000)
    assert list(timelines(session)) == [("cuda", 0)]
    (time,) = device_times(session)
    assert (time.backend, time.device, time.busy_ns) == ("cuda", 0, 600)
    (row,) = idle(session)
    assert row.compute_ns == 600
    (profile,) = launches(session)
    assert profile.kernels == 2
