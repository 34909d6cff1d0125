"""A small GPU program of our own that needs no toolkit: what ``gpusense demo`` traces and the self-test counts.

Everything launched is counted as it is launched, so that a trace of it can be compared number by number.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

from .. import cuda

# Lowest virtual architecture and oldest PTX that today's drivers still compile: every card from Maxwell on runs it.
PTX = """
.version 6.0
.target sm_50
.address_size 64

// y[i] = a * x[i] + y[i]
.visible .entry saxpy(.param .u64 x, .param .u64 y, .param .f32 a, .param .u32 n)
{
    .reg .pred %outside;
    .reg .b32 %index, %count, %block, %threads, %thread;
    .reg .f32 %a, %x, %y;
    .reg .b64 %px, %py, %offset;
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.u32 %index, %block, %threads, %thread;
    ld.param.u32 %count, [n];
    setp.ge.u32 %outside, %index, %count;
    @%outside bra done;
    ld.param.u64 %px, [x];
    ld.param.u64 %py, [y];
    ld.param.f32 %a, [a];
    cvta.to.global.u64 %px, %px;
    cvta.to.global.u64 %py, %py;
    mul.wide.u32 %offset, %index, 4;
    add.u64 %px, %px, %offset;
    add.u64 %py, %py, %offset;
    ld.global.f32 %x, [%px];
    ld.global.f32 %y, [%py];
    fma.rn.f32 %y, %a, %x, %y;
    st.global.f32 [%py], %y;
done:
    ret;
}

// c = a b for square row-major matrices, one thread an element and every operand from global memory
.visible .entry matmul_naive(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{
    .reg .pred %outside, %more;
    .reg .b32 %row, %column, %n, %k, %block, %threads, %thread, %index;
    .reg .f32 %sum, %x, %y;
    .reg .b64 %pa, %pb, %pc, %stride, %offset;
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.u32 %column, %block, %threads, %thread;
    mov.u32 %block, %ctaid.y;
    mov.u32 %threads, %ntid.y;
    mov.u32 %thread, %tid.y;
    mad.lo.u32 %row, %block, %threads, %thread;
    ld.param.u32 %n, [n];
    max.u32 %index, %row, %column;
    setp.ge.u32 %outside, %index, %n;
    @%outside bra done;
    ld.param.u64 %pa, [a];
    ld.param.u64 %pb, [b];
    ld.param.u64 %pc, [c];
    cvta.to.global.u64 %pa, %pa;
    cvta.to.global.u64 %pb, %pb;
    cvta.to.global.u64 %pc, %pc;
    mul.lo.u32 %index, %row, %n;
    mul.wide.u32 %offset, %index, 4;
    add.u64 %pa, %pa, %offset;
    add.u64 %pc, %pc, %offset;
    mul.wide.u32 %offset, %column, 4;
    add.u64 %pb, %pb, %offset;
    add.u64 %pc, %pc, %offset;
    mul.wide.u32 %stride, %n, 4;
    mov.f32 %sum, 0f00000000;
    mov.u32 %k, 0;
next:
    ld.global.f32 %x, [%pa];
    ld.global.f32 %y, [%pb];
    fma.rn.f32 %sum, %x, %y, %sum;
    add.u64 %pa, %pa, 4;
    add.u64 %pb, %pb, %stride;
    add.u32 %k, %k, 1;
    setp.lt.u32 %more, %k, %n;
    @%more bra next;
    st.global.f32 [%pc], %sum;
done:
    ret;
}

// keeps the device busy for at least so many nanoseconds of its own clock
.visible .entry spin(.param .u64 nanoseconds)
{
    .reg .pred %more;
    .reg .b64 %start, %now, %length;
    ld.param.u64 %length, [nanoseconds];
    mov.u64 %start, %globaltimer;
again:
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %start;
    setp.lt.u64 %more, %now, %length;
    @%more bra again;
    ret;
}
"""

SIDE = 512  # of the matrices
ELEMENTS = 1 << 16  # of the vectors
SPIN_NS = 300_000  # three times the default threshold

Path = tuple[str, ...]
Trace = Callable[[str], AbstractContextManager[object]]


class Launched(NamedTuple):
    """What a run gave to the device, exactly. Copies are keyed by direction, blocks and their kernels by path."""

    kernels: dict[str, int]
    copies: dict[str, int]
    copy_bytes: dict[str, int]
    memsets: int
    memset_bytes: int
    blocks: dict[Path, int]
    kernels_by_block: dict[Path, dict[str, int]]


class _Tally:
    """Launches, copies and blocks, counted where they are made. ``trace`` is what opens a block."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._path: Path = ()
        self._kernels: dict[Path, Counter[str]] = {}
        self._blocks: Counter[Path] = Counter()
        self._copies: Counter[str] = Counter()
        self._copy_bytes: Counter[str] = Counter()
        self._memset_bytes: list[int] = []

    @contextmanager
    def block(self, name: str) -> Iterator[None]:
        outer, self._path = self._path, (*self._path, name)
        self._blocks[self._path] += 1
        try:
            with self._trace(name):
                yield
        finally:
            self._path = outer

    def launch(self, function: cuda.Function, grid: tuple[int, ...], block: tuple[int, ...], *args: object) -> None:
        function.launch(grid, block, args)
        self._kernels.setdefault(self._path, Counter())[function.name] += 1

    def upload(self, buffer: cuda.Buffer, data: "bytearray | memoryview") -> None:
        buffer.copy_from(data)
        self._copied("cpu_to_gpu", len(data))

    def download(self, buffer: cuda.Buffer, target: "bytearray | memoryview") -> None:
        buffer.copy_to(target)
        self._copied("gpu_to_cpu", len(target))

    def duplicate(self, target: cuda.Buffer, source: cuda.Buffer) -> None:
        target.copy_from_buffer(source)
        self._copied("on_device", source.nbytes)

    def clear(self, buffer: cuda.Buffer) -> None:
        buffer.fill(0)
        self._memset_bytes.append(buffer.nbytes)

    def _copied(self, direction: str, nbytes: int) -> None:
        self._copies[direction] += 1
        self._copy_bytes[direction] += nbytes

    def result(self) -> Launched:
        total: Counter[str] = Counter()
        for counts in self._kernels.values():
            total += counts
        return Launched(
            kernels=dict(total),
            copies=dict(self._copies),
            copy_bytes=dict(self._copy_bytes),
            memsets=len(self._memset_bytes),
            memset_bytes=sum(self._memset_bytes),
            blocks=dict(self._blocks),
            kernels_by_block={path: dict(counts) for path, counts in self._kernels.items()},
        )


def run(trace: Trace = nullcontext, steps: int = 20, device: int = 0) -> Launched:
    """Runs the demonstration on ``device`` inside blocks that ``trace(name)`` opens, and gives back what it launched.

    CUDA is initialised before the first block, so that capture finds it live there. Each step uploads a batch from
    pageable memory, multiplies matrices, runs a fast kernel several times and a slow one once, and downloads the
    result into pinned memory. Returns when the device has finished. Raises what :mod:`gpusense.cuda` raises.
    """
    card = cuda.Device(device)
    tally = _Tally(trace)
    batch, size = bytearray(4 * SIDE * SIDE), 4 * SIDE * SIDE
    with (
        cuda.Module.from_ptx(PTX, card) as module,
        cuda.Buffer(size, card) as a,
        cuda.Buffer(size, card) as b,
        cuda.Buffer(size, card) as c,
        cuda.Buffer(4 * ELEMENTS, card) as x,
        cuda.Buffer(4 * ELEMENTS, card) as y,
        cuda.PinnedMemory(size, card) as pinned,
    ):
        matmul, saxpy, spin = (module.function(name) for name in ("matmul_naive", "saxpy", "spin"))
        with tally.block("demo"):
            with tally.block("load"):
                tally.upload(b, pinned.view())
                for buffer in (x, y):
                    tally.clear(buffer)
            for _ in range(steps):
                with tally.block("step"):
                    with tally.block("upload"):
                        tally.upload(a, batch)
                    with tally.block("forward"):
                        tally.launch(matmul, (SIDE // 16, SIDE // 16), (16, 16), a, b, c, SIDE)
                        for _ in range(8):
                            tally.launch(saxpy, (ELEMENTS // 256,), (256,), x, y, 0.5, ELEMENTS)
                    with tally.block("backward"):
                        tally.launch(spin, (1,), (32,), SPIN_NS)
                        tally.duplicate(y, x)
            with tally.block("save"):
                tally.download(c, pinned.view())
                tally.download(c, batch)
        card.synchronize()
    return tally.result()


def selftest(ready: Callable[[], object] = lambda: None, device: int = 0) -> Launched:
    """Exactly one kernel and one copy to the device, launched after ``ready()`` returned; waits for both.

    CUDA is initialised, the module loaded and memory allocated before ``ready`` is called: start capture there.
    """
    card = cuda.Device(device)
    tally = _Tally(nullcontext)
    with cuda.Module.from_ptx(PTX, card) as module, cuda.Buffer(4096, card) as buffer:
        spin = module.function("spin")
        ready()
        tally.upload(buffer, bytearray(4096))
        tally.launch(spin, (1,), (32,), SPIN_NS)
        card.synchronize()
    return tally.result()
