"""Everything on one timeline: wgpu passes, CUDA kernels, transfers, CPU work and the program's own blocks.

Runs on any machine. What is not there is left out and said: no wgpu package or no Vulkan, Metal or DX12 driver (a
software driver will do), no CUDA device. Give a path to keep the session for ``gpusense report``.

    python examples/unified_timeline.py [timeline.gpusense]
"""

import array
import sys

import gpusense
from gpusense.session import save

COUNT = 1 << 16
SHADER = """
@group(0) @binding(0) var<storage, read_write> data: array<f32>;
@compute @workgroup_size(64) fn relax(@builtin(global_invocation_id) id: vec3<u32>) {
    var x = data[id.x];
    for (var i = 0; i < 200; i++) { x = 0.5 * (x + 2.0 / max(x, 0.001)); }
    data[id.x] = x;
}
"""
PTX = """
.version 6.0
.target sm_50
.address_size 64

.visible .entry double_all(.param .u64 data, .param .u32 count)
{
    .reg .pred %outside;
    .reg .b32 %block, %threads, %thread, %index, %count;
    .reg .f32 %value;
    .reg .b64 %data, %offset;
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.u32 %index, %block, %threads, %thread;
    ld.param.u32 %count, [count];
    setp.ge.u32 %outside, %index, %count;
    @%outside bra done;
    ld.param.u64 %data, [data];
    cvta.to.global.u64 %data, %data;
    mul.wide.u32 %offset, %index, 4;
    add.u64 %data, %data, %offset;
    ld.global.f32 %value, [%data];
    add.f32 %value, %value, %value;
    st.global.f32 [%data], %value;
done:
    ret;
}
"""


def prepare() -> array.array:
    """CPU work: a compute block with its throughput."""
    with gpusense.compute_block("prepare", elements=COUNT):
        return array.array("f", (1.0 + (number % 97) for number in range(COUNT)))


class WgpuPart:
    """A compute pass on whatever adapter there is; nothing in here knows of gpusense."""

    def __init__(self) -> None:
        import wgpu

        adapter = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
        self.device = adapter.request_device_sync()
        self.name = adapter.info["device"]
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
        self.buffer = self.device.create_buffer(label="field", size=4 * COUNT, usage=usage)
        module = self.device.create_shader_module(code=SHADER)
        compute = {"module": module, "entry_point": "relax"}
        self.pipeline = self.device.create_compute_pipeline(layout="auto", compute=compute)
        entries = [{"binding": 0, "resource": {"buffer": self.buffer, "offset": 0, "size": 4 * COUNT}}]
        layout = self.pipeline.get_bind_group_layout(0)
        self.group = self.device.create_bind_group(layout=layout, entries=entries)

    def step(self, values: array.array) -> None:
        self.device.queue.write_buffer(self.buffer, 0, values)
        encoder = self.device.create_command_encoder()
        work = encoder.begin_compute_pass()
        work.set_pipeline(self.pipeline)
        work.set_bind_group(0, self.group)
        work.dispatch_workgroups(COUNT // 64)
        work.end()
        self.device.queue.submit([encoder.finish()])
        self.device.queue.read_buffer(self.buffer)


def wgpu_part() -> "WgpuPart | None":
    from gpusense.integrations import wgpu_py

    answer = wgpu_py.instrument()
    if not answer:
        print(f"without wgpu: {answer}")
        return None
    try:
        part = WgpuPart()
    except RuntimeError as error:  # no adapter
        print(f"without wgpu: {error}")
        return None
    print(f"wgpu on {part.name}")
    return part


class CudaPart:
    """The same for CUDA, where there is a device: the driver compiles the kernel, no toolkit is needed."""

    def __init__(self) -> None:
        from gpusense import cuda

        self.kernel = cuda.Module.from_ptx(PTX).function("double_all")
        self.buffer = cuda.Buffer(4 * COUNT)

    def step(self, values: array.array) -> None:
        self.buffer.copy_from(values)
        self.kernel.launch(COUNT // 256, 256, (self.buffer, COUNT))
        self.buffer.copy_to(array.array("f", bytes(4 * COUNT)))


def cuda_part() -> "CudaPart | None":
    try:
        return CudaPart()
    except gpusense.GpuSenseError as error:
        print(f"without CUDA: {error}")
        return None


def main() -> None:
    gpusense.configure(trace_all=True)
    gpusense.enable()
    parts = [part for part in (wgpu_part(), cuda_part()) if part is not None]
    for number in range(3):
        with gpusense.trace("frame", {"number": number}):
            values = prepare()
            for part in parts:
                with gpusense.trace(type(part).__name__):
                    part.step(values)
            gpusense.record_transfer("to disk", "cpu_to_cpu", bytes=4 * COUNT, duration_ns=50_000)
    tracer = gpusense.get_tracer()
    session = tracer.session()
    for record in sorted(session.records, key=lambda record: record.start_ns):
        kind = type(record).__name__
        where = " / ".join(record.path)
        print(f"{(record.end_ns - record.start_ns) / 1e3:10.1f} µs  {kind:18} {record.name:28} {where}")
    tracer.print_summary()
    if len(sys.argv) > 1:
        save(session, sys.argv[1])


if __name__ == "__main__":
    main()
