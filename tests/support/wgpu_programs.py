"""Small wgpu programs for the tests: they know nothing of gpusense. Also run as a program, with a function's name."""

import array
import sys

import wgpu

SHADER = """
@group(0) @binding(0) var<storage, read_write> data: array<u32>;
override rounds: u32 = 64u;
@compute @workgroup_size(64) fn churn(@builtin(global_invocation_id) id: vec3<u32>) {
    var x = data[id.x];
    for (var i = 0u; i < rounds; i++) { x = x * 1664525u + 1013904223u; }
    data[id.x] = x;
}
"""

TRIANGLE = """
@vertex fn corner(@builtin(vertex_index) i: u32) -> @builtin(position) vec4<f32> {
    var at = array<vec2<f32>, 3>(vec2(0.0, -0.5), vec2(0.5, 0.5), vec2(-0.5, 0.7));
    return vec4<f32>(at[i], 0.0, 1.0);
}
@fragment fn paint() -> @location(0) vec4<f32> { return vec4<f32>(0.2, 0.4, 0.6, 1.0); }
"""

U = wgpu.BufferUsage


def adapter():
    return wgpu.gpu.request_adapter_sync(power_preference="high-performance")


def device(**options):
    return adapter().request_device_sync(**options)


class Compute:
    """A buffer of ``4 * count`` bytes and a pipeline that churns it."""

    def __init__(self, gpu, count=4096, label="numbers"):
        self.gpu, self.count = gpu, count
        module = gpu.create_shader_module(code=SHADER)
        self.pipeline = gpu.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "churn"})
        self.buffer = gpu.create_buffer(label=label, size=4 * count, usage=U.STORAGE | U.COPY_SRC | U.COPY_DST)
        entries = [{"binding": 0, "resource": {"buffer": self.buffer, "offset": 0, "size": 4 * count}}]
        self.group = gpu.create_bind_group(layout=self.pipeline.get_bind_group_layout(0), entries=entries)

    def encode(self, encoder, **options):
        work = encoder.begin_compute_pass(**options)
        work.set_pipeline(self.pipeline)
        work.set_bind_group(0, self.group)
        work.dispatch_workgroups(self.count // 64)
        work.end()

    def run(self, passes=1, **options):
        encoder = self.gpu.create_command_encoder()
        for _ in range(passes):
            self.encode(encoder, **options)
        self.gpu.queue.submit([encoder.finish()])

    def write(self):
        self.gpu.queue.write_buffer(self.buffer, 0, array.array("I", range(self.count)))

    def read(self):
        return bytes(self.gpu.queue.read_buffer(self.buffer))


def compute():
    """Results of a compute program, written, run three times and read in both ways."""
    work = Compute(device())
    work.write()
    work.run(3)
    target = work.gpu.create_buffer(size=4 * work.count, usage=U.MAP_READ | U.COPY_DST)
    encoder = work.gpu.create_command_encoder()
    encoder.copy_buffer_to_buffer(work.buffer, 0, target, 0, 4 * work.count)
    work.gpu.queue.submit([encoder.finish()])
    target.map_sync("READ") if hasattr(target, "map_sync") else target.map_async("READ").sync_wait()
    mapped = bytes(target.read_mapped())
    target.unmap()
    assert mapped == work.read()
    return mapped


def render():
    """Pixels of a triangle."""
    gpu = device()
    size = (256, 128, 1)
    texture = gpu.create_texture(
        label="picture",
        size=size,
        format="rgba8unorm",
        usage=wgpu.TextureUsage.RENDER_ATTACHMENT | wgpu.TextureUsage.COPY_SRC | wgpu.TextureUsage.COPY_DST,
    )
    module = gpu.create_shader_module(code=TRIANGLE)
    pipeline = gpu.create_render_pipeline(
        label="triangle",
        layout="auto",
        vertex={"module": module, "entry_point": "corner", "buffers": []},
        fragment={"module": module, "entry_point": "paint", "targets": [{"format": "rgba8unorm"}]},
        primitive={"topology": "triangle-list"},
    )
    layout = {"offset": 0, "bytes_per_row": 4 * size[0], "rows_per_image": size[1]}
    gpu.queue.write_texture({"texture": texture, "mip_level": 0}, bytes(4 * size[0] * size[1]), layout, size)
    encoder = gpu.create_command_encoder()
    attachment = {"view": texture.create_view(), "load_op": "load", "store_op": "store", "clear_value": (0, 0, 0, 1)}
    work = encoder.begin_render_pass(color_attachments=[attachment])
    work.set_pipeline(pipeline)
    work.draw(3)
    work.end()
    gpu.queue.submit([encoder.finish()])
    return bytes(gpu.queue.read_texture({"texture": texture, "mip_level": 0}, layout, size))


def self_timed(rounds=3):
    """Milliseconds of passes as the program measures them itself, with its own query set used again each time."""
    work = Compute(device(required_features=["timestamp-query"]), count=1 << 16)
    queries = work.gpu.create_query_set(type="timestamp", count=2)
    resolved = work.gpu.create_buffer(size=16, usage=U.QUERY_RESOLVE | U.COPY_SRC)
    writes = {"query_set": queries, "beginning_of_pass_write_index": 0, "end_of_pass_write_index": 1}
    times = []
    for _ in range(rounds):
        encoder = work.gpu.create_command_encoder()
        work.encode(encoder, label="timed", timestamp_writes=writes)
        encoder.resolve_query_set(queries, 0, 2, resolved, 0)
        work.gpu.queue.submit([encoder.finish()])
        begin, end = work.gpu.queue.read_buffer(resolved).cast("Q")
        times.append((end - begin) / 1e6)
    return times


if __name__ == "__main__":
    result = globals()[sys.argv[1]]()
    print(result.hex() if isinstance(result, bytes) else result)
