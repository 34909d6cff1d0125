"""A simulation that keeps its last fields and copies each of them to the next place after every step."""

import truth
import wgpu

CELLS, KEPT = truth.scaled(1 << 20, 1 << 14), 16
SHADER = """
@group(0) @binding(0) var<storage, read> field: array<f32>;
@group(0) @binding(1) var<storage, read_write> next: array<f32>;
@compute @workgroup_size(256) fn spread(@builtin(global_invocation_id) id: vec3<u32>) {
    let at = id.x * 8u;
    for (var i = at; i < at + 8u; i++) { next[i] = 0.25 * field[max(i, 1u) - 1u] + 0.75 * field[i]; }
}
@compute @workgroup_size(64) fn edge(@builtin(global_invocation_id) id: vec3<u32>) {
    next[id.x] = 0.99 * next[id.x];
}
"""

device = wgpu.gpu.request_adapter_sync(power_preference="high-performance").request_device_sync()
module = device.create_shader_module(code=SHADER)
use = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.COPY_SRC
fields = [device.create_buffer(label=f"field {at}", size=4 * CELLS, usage=use) for at in range(KEPT)]
entries = [{"binding": at, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": kind}}
           for at, kind in enumerate(("read-only-storage", "storage"))]  # fmt: skip
layout = device.create_bind_group_layout(entries=entries)
groups = [  # into each field from the one behind it, and into the last from the first
    device.create_bind_group(
        layout=layout,
        entries=[{"binding": at, "resource": {"buffer": buffer}} for at, buffer in enumerate(pair)],
    )
    for pair in zip(fields[1:] + fields[:1], fields, strict=True)
]
pipelines = {
    name: device.create_compute_pipeline(
        layout=device.create_pipeline_layout(bind_group_layouts=[layout]),
        compute={"module": module, "entry_point": name},
    )
    for name in ("spread", "edge")
}
sizes = {"spread": CELLS // 256 // 8, "edge": 16}


def finished() -> None:
    device.queue.read_buffer(fields[0], size=4)


for step in truth.Steady(finished, copies_per_step=KEPT - 1, bytes_per_copy=4 * CELLS).steps(4, 50):
    encoder = device.create_command_encoder()
    if not truth.FIXED:
        for at in reversed(range(1, KEPT)):
            encoder.copy_buffer_to_buffer(fields[at - 1], 0, fields[at], 0, 4 * CELLS)
    for name, pipeline in pipelines.items():
        work = encoder.begin_compute_pass(label=name)
        work.set_pipeline(pipeline)
        work.set_bind_group(0, groups[-step % KEPT if truth.FIXED else 0])
        work.dispatch_workgroups(sizes[name])
        work.end()
    device.queue.submit([encoder.finish()])
