"""One matrix product on CUDA and on wgpu, side by side in one session. Where one is missing, you see the other.

python examples/matrix_product.py [size, a multiple of 16]
"""

import array
import sys

import gpusense
from gpusense import cuda
from gpusense.integrations import wgpu_py

SIZE = int(sys.argv[1]) if len(sys.argv) > 1 else 128
A, B = (array.array("f", (float((at + shift) % 7) for at in range(SIZE * SIZE))) for shift in (0, 3))
C, GRID = array.array("f", bytes(4 * SIZE * SIZE)), (SIZE // 16, SIZE // 16, 1)
PTX = """.version 6.0 .target sm_50 .address_size 64
.visible .entry product(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 size) {
    .reg .pred %more; .reg .f32 %sum, %x, %y; .reg .b32 %row, %col, %size, %k, %n, %t; .reg .b64 %a, %b, %c, %step, %at;
    mov.u32 %n, %ctaid.x; mov.u32 %t, %tid.x; mad.lo.u32 %col, %n, 16, %t; mov.u32 %k, 0;
    mov.u32 %n, %ctaid.y; mov.u32 %t, %tid.y; mad.lo.u32 %row, %n, 16, %t; mov.f32 %sum, 0f00000000;
    ld.param.u64 %a, [a]; ld.param.u64 %b, [b]; ld.param.u64 %c, [c]; ld.param.u32 %size, [size];
    mul.wide.u32 %step, %size, 4; mul.wide.u32 %at, %col, 4; add.u64 %b, %b, %at; add.u64 %c, %c, %at;
    mul.lo.u32 %n, %row, %size; mul.wide.u32 %at, %n, 4; add.u64 %a, %a, %at; add.u64 %c, %c, %at;
next: ld.global.f32 %x, [%a]; ld.global.f32 %y, [%b]; fma.rn.f32 %sum, %x, %y, %sum;
    add.u64 %a, %a, 4; add.u64 %b, %b, %step; add.u32 %k, %k, 1; setp.lt.u32 %more, %k, %size; @%more bra next;
    st.global.f32 [%c], %sum; ret;
}"""
WGSL = """
@group(0) @binding(0) var<storage, read> a: array<f32>; @group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> c: array<f32>; override size: u32;
@compute @workgroup_size(16, 16) fn main(@builtin(global_invocation_id) at: vec3u) {
    for (var k = 0u; k < size; k++) { c[at.y * size + at.x] += a[at.y * size + k] * b[k * size + at.x]; }
}"""


def on_cuda() -> None:
    with cuda.Buffer.of(A) as a, cuda.Buffer.of(B) as b, cuda.Buffer(4 * len(C)) as c:
        cuda.Module.from_ptx(PTX).function("product").launch(GRID, (16, 16), (a, b, c, SIZE))
        c.copy_to(C)


def on_wgpu() -> None:
    from wgpu.utils.compute import compute_with_buffers

    C[:] = array.array("f", compute_with_buffers({0: A, 1: B}, {2: (len(C), "f")}, WGSL, {"size": SIZE}, GRID)[2])


gpusense.configure(trace_all=True)
gpusense.enable()
wgpu_py.instrument()
for name, multiply in (("CUDA", on_cuda), ("wgpu", on_wgpu)):
    try:
        with gpusense.trace(name):
            multiply()
        print(f"{name}: begins with {C[0]:,.0f}; right is {sum(A[k] * B[k * SIZE] for k in range(SIZE)):,.0f}")
    except (gpusense.GpuSenseError, RuntimeError, ImportError) as error:  # noqa: PERF203 - no driver, adapter, package
        print(f"without {name}: {error}")
wgpu_py.flush()
for kernel in gpusense.get_tracer().session().kernels:
    print(f"{' / '.join(kernel.path)}: {kernel.name}, {kernel.duration_ns / 1e3:,.1f} µs for {SIZE} × {SIZE}")
