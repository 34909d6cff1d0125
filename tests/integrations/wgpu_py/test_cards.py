"""One card is one card: an adapter is the device that CUDA and NVML know, with one number and one busy time."""

import pytest
from support.wgpu_traced import Recording, all_back

import gpusense
from gpusense._aggregation.busy import Busy
from gpusense._records.records import Aggregate, DeviceBusy, DeviceInfo, GpuKernel, GpuMemoryTransfer, GpuMemset
from gpusense.analysis.busy import device_times, sweeps
from gpusense.analysis.findings import findings
from gpusense.analysis.idle import REASONS, idle
from gpusense.analysis.launch import launches
from gpusense.backends.wgpu.source import numbered
from gpusense.backends.wgpu.vulkan import Card
from gpusense.integrations import wgpu_py
from gpusense.integrations.wgpu_py._copies import texel_bytes
from gpusense.session import Session

FORMATS = ("rgba8unorm", "depth24plus")

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
    listed = gpusense.devices()  # cards that other libraries know come first
    (place,) = [at for at, one in enumerate(listed) if one.name == device.name]
    assert place == sum(one.backend != "wgpu" for one in listed)
    assert (listed[place].index, listed[place].kind, listed[place].vendor) == (place, device.kind, device.vendor)


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
            work = programs.Compute(adapter.request_device_sync())
            work.run()
            work.gpu.queue.write_buffer(work.buffer, 0, bytes(64))
        assert {record.device for record in (*made.of(GpuKernel), *made.of(GpuMemoryTransfer))} == {0}
        assert len(made.of(GpuMemoryTransfer)) == len(found)
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
    assert list(sweeps(session)) == ([] if counted else [("cuda", 0)])  # sums have no places in time
    (time,) = device_times(session)
    assert (time.backend, time.device, time.busy_ns) == ("cuda", 0, 600)
    (row,) = idle(session)
    assert row.compute_ns == 600
    (profile,) = launches(session)
    assert profile.kernels == 2


def test_what_lies_inside_a_submit_is_not_charged_to_the_host() -> None:
    """Copies, clears and uploads are not timed there, and the host had done its part."""

    def ran(start: int, end: int, submitted: int) -> GpuKernel:
        return GpuKernel("x", start, end, device=0, backend="wgpu", attributes={"submitted_ns": submitted})

    millisecond = 1_000_000
    times = ((10, 20, 5), (50, 60, 5), (90, 95, 80))
    session = Session(records=[ran(*(at * millisecond for at in one)) for one in times])
    session.meta.update(start_ns=0, end_ns=100 * millisecond)
    (row,) = idle(session)
    assert row.unattributed_ns == (5 + 30 + 10) * millisecond  # before the first, between the two, before the third
    assert row.host_ns == 20 * millisecond  # from the end of the first submit to the second
    assert sum(row.part(reason) for reason in REASONS) == row.window_ns
    (found,) = [one for one in findings(session) if one.kind == "starved"]
    assert (found.confidence, found.saving_ns) == ("low", 20 * millisecond)  # of three passes
    assert (
        found.share == 20 / 45
    )  # of the 85 ms at work what is known: not the 30 between the first two, nor the last 10
    assert not [one for one in findings(session) if "loader" in one.fix]


def test_passes_say_when_they_were_submitted(recording, programs) -> None:
    work = programs.Compute(programs.device())
    work.run(2)
    first, second = recording.of(GpuKernel)
    assert first.attributes["submitted_ns"] == second.attributes["submitted_ns"]
    assert first.attributes["submitted_ns"] <= first.start_ns + first.attributes["clock_uncertainty_ns"]


@pytest.mark.parametrize(("name", "size"), [("rgba8unorm", 4), ("r16float", 2), ("rg32uint", 8), ("rgb10a2unorm", 4)])
def test_bytes_of_a_texel(name: str, size: int) -> None:
    assert texel_bytes(name) == size


def test_copies_between_textures_and_clears(wgpu, programs) -> None:
    made = Recording()
    wgpu_py.instrument(emit=made.records.extend, copies=True)
    try:
        gpu = programs.device()
        usage = wgpu.TextureUsage.COPY_SRC | wgpu.TextureUsage.COPY_DST
        size = (64, 32, 1)
        of = {kind: [gpu.create_texture(size=size, format=kind, usage=usage) for _ in range(2)] for kind in FORMATS}
        work = programs.Compute(gpu)
        encoder = gpu.create_command_encoder(label="frame")
        for source, target in of.values():
            encoder.copy_texture_to_texture({"texture": source}, {"texture": target}, size)
        encoder.clear_buffer(work.buffer, 64, 128)
        encoder.clear_buffer(work.buffer)
        gpu.queue.submit([encoder.finish()])
        copies = made.of(GpuMemoryTransfer)
        assert [(one.name, one.bytes) for one in copies] == [("copy_texture_to_texture(frame)", 4 * 64 * 32)]
        clears = made.of(GpuMemset)
        assert [(one.name, one.bytes, one.value) for one in clears] == [
            ("clear_buffer(frame)", 128, 0),
            ("clear_buffer(frame)", 4 * work.count, 0),
        ]
        assert all(one.device == 0 and one.end_ns > one.start_ns for one in (*copies, *clears))
        assert list(wgpu_py.statistics().untimed.values()) == [1]  # nobody knows what a driver makes of depth24plus
        assert all_back(gpu.__dict__["_gpusense"])
    finally:
        wgpu_py.uninstrument()


def test_copies_may_be_asked_for_later(recording, programs) -> None:
    assert wgpu_py.instrument(copies=True) is True
    work = programs.Compute(programs.device())
    encoder = work.gpu.create_command_encoder()
    encoder.clear_buffer(work.buffer)
    work.gpu.queue.submit([encoder.finish()])
    assert len(recording.of(GpuMemset)) == 1
