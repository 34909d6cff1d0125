"""Renders a gradient with a PTX kernel that the driver compiles, shows it in the terminal, and prints what it cost.

No toolkit, no framework: only a driver. Where there is no GPU, it says so and renders the same picture on the CPU.

    python examples/gpu_pixels.py [columns]
"""

import os
import sys
import time

from gpusense import cuda

PTX = """
.version 6.0
.target sm_50
.address_size 64

// One thread a pixel: red grows to the right, green downwards, blue along the diagonal back to the left.
.visible .entry gradient(.param .u64 pixels, .param .u32 width, .param .u32 height)
{
    .reg .pred %outside;
    .reg .b32 %x, %y, %width, %height, %block, %threads, %thread, %red, %green, %blue, %last;
    .reg .b64 %pixels, %offset;
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.u32 %x, %block, %threads, %thread;
    mov.u32 %block, %ctaid.y;
    mov.u32 %threads, %ntid.y;
    mov.u32 %thread, %tid.y;
    mad.lo.u32 %y, %block, %threads, %thread;
    ld.param.u32 %width, [width];
    ld.param.u32 %height, [height];
    setp.ge.u32 %outside, %x, %width;
    @%outside bra done;
    setp.ge.u32 %outside, %y, %height;
    @%outside bra done;

    sub.u32 %last, %width, 1;
    max.u32 %last, %last, 1;
    mul.lo.u32 %red, %x, 255;
    div.u32 %red, %red, %last;
    sub.u32 %last, %height, 1;
    max.u32 %last, %last, 1;
    mul.lo.u32 %green, %y, 255;
    div.u32 %green, %green, %last;
    add.u32 %blue, %red, %green;
    shr.u32 %blue, %blue, 1;
    sub.u32 %blue, 255, %blue;

    ld.param.u64 %pixels, [pixels];
    cvta.to.global.u64 %pixels, %pixels;
    mad.lo.u32 %thread, %y, %width, %x;
    mul.wide.u32 %offset, %thread, 3;
    add.u64 %pixels, %pixels, %offset;
    st.global.u8 [%pixels], %red;
    st.global.u8 [%pixels + 1], %green;
    st.global.u8 [%pixels + 2], %blue;
done:
    ret;
}
"""


def render_on_gpu(width: int, height: int) -> tuple[bytes, cuda.KernelMetrics]:
    kernel = cuda.Module.from_ptx(PTX).function("gradient")
    block = (16, 16)
    grid = (-(-width // block[0]), -(-height // block[1]))
    with cuda.Buffer(3 * width * height) as pixels:
        metrics = cuda.launch_instrumented(kernel, grid, block, (pixels, width, height))
        return pixels.to_bytes(), metrics


def render_on_cpu(width: int, height: int) -> bytes:
    pixels = bytearray()
    for y in range(height):
        green = y * 255 // max(height - 1, 1)
        for x in range(width):
            red = x * 255 // max(width - 1, 1)
            pixels += bytes((red, green, 255 - (red + green) // 2))
    return bytes(pixels)


def show(pixels: bytes, width: int, height: int) -> None:
    """Two rows of pixels a line of text: the upper half block has the one's colour, its background the other's."""
    if not sys.stdout.isatty() or "NO_COLOR" in os.environ:
        shades = " .:-=+*#%@"
        for y in range(0, height, 2):
            row = pixels[3 * width * y : 3 * width * (y + 1)]
            print("".join(shades[(row[3 * x] + row[3 * x + 1]) * len(shades) // 511] for x in range(width)))
        return
    for y in range(0, height - 1, 2):
        line = []
        for x in range(width):
            upper, lower = 3 * (width * y + x), 3 * (width * (y + 1) + x)
            line.append(
                "\x1b[38;2;{};{};{};48;2;{};{};{}m▀".format(*pixels[upper : upper + 3], *pixels[lower : lower + 3])
            )
        print("".join(line) + "\x1b[0m")


def main() -> None:
    width = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    height = width // 2

    def done(spent_ns: float) -> str:
        rate = width * height * 1e3 / spent_ns
        return f"{width} × {height} pixels in {spent_ns / 1e3:.1f} µs, {rate:,.1f} Mpx/s"

    if cuda.cuda_available():
        pixels, metrics = render_on_gpu(width, height)
        show(pixels, width, height)
        device = cuda.Device(metrics.device)
        free, total = device.memory_info()
        print(f"{device.name}: {done(metrics.event_time_ns)}")
        print(f"grid {metrics.grid}, block {metrics.block}, {metrics.registers_per_thread} registers a thread,")
        print(f"{metrics.blocks_per_sm} blocks an SM, occupancy {metrics.occupancy:.0%}")
        print(
            f"the picture takes {len(pixels) / 1e3:.1f} kB of VRAM; {free / 1e9:.1f} GB of {total / 1e9:.1f} are free"
        )
    else:
        started = time.perf_counter_ns()
        pixels = render_on_cpu(width, height)
        elapsed = time.perf_counter_ns() - started
        show(pixels, width, height)
        print(f"No CUDA device here, so the CPU did it: {done(elapsed)}")


if __name__ == "__main__":
    main()
