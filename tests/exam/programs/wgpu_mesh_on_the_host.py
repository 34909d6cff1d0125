"""A simulation whose host works out a mesh before every frame and uploads it, while the device has nothing to do."""

import array
import math

import truth
import wgpu

POINTS, ROUNDS = truth.scaled(1 << 16, 64), 40
SHADER = """
override rounds: u32 = 1u;
@group(0) @binding(0) var<storage, read> points: array<f32>;
@group(0) @binding(1) var<storage, read_write> moved: array<f32>;
@compute @workgroup_size(64) fn relax(@builtin(global_invocation_id) id: vec3<u32>) {
    var x = points[id.x];
    for (var i = 0u; i < rounds; i++) { x = x + 0.01 * (0.5 - x * x); }
    moved[id.x] = x;
}
@compute @workgroup_size(64) fn shade(@builtin(global_invocation_id) id: vec3<u32>) {
    var x = moved[id.x];
    for (var i = 0u; i < rounds; i++) { x = fract(x * 1.37 + points[id.x]); }
    moved[id.x] = x;
}
"""

device = wgpu.gpu.request_adapter_sync(power_preference="high-performance").request_device_sync()
module = device.create_shader_module(code=SHADER)
use = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.COPY_SRC
points, moved = (device.create_buffer(label=name, size=4 * POINTS, usage=use) for name in ("points", "moved"))
entries = [{"binding": at, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": kind}}
           for at, kind in enumerate(("read-only-storage", "storage"))]  # fmt: skip
layout = device.create_bind_group_layout(entries=entries)
group = device.create_bind_group(
    layout=layout,
    entries=[{"binding": at, "resource": {"buffer": buffer}} for at, buffer in enumerate((points, moved))],
)
pipelines = {
    name: device.create_compute_pipeline(
        layout=device.create_pipeline_layout(bind_group_layouts=[layout]),
        compute={"module": module, "entry_point": name, "constants": {"rounds": ROUNDS}},
    )
    for name in ("relax", "shade")
}


def mesh(step: int) -> array.array:
    """The points of a frame, one by one."""
    return array.array("f", (math.sin(0.001 * at + 0.1 * step) ** 2 for at in range(POINTS)))


def finished() -> None:
    device.queue.read_buffer(moved, size=4)


ready = mesh(0)
for step in truth.Steady(finished, points=POINTS).steps(4, 50):
    device.queue.write_buffer(points, 0, ready if truth.FIXED else mesh(step))
    encoder = device.create_command_encoder()
    for name, pipeline in pipelines.items():
        work = encoder.begin_compute_pass(label=name)
        work.set_pipeline(pipeline)
        work.set_bind_group(0, group)
        work.dispatch_workgroups(POINTS // 64)
        work.end()
    device.queue.submit([encoder.finish()])
    finished()  # the frame is shown
