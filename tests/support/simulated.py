"""Programs of the exam that a simulated machine runs: each is a function with one planted fault, or none.

The machine has a host that launches and goes on, and streams that work through what was launched, at the rates of an
H200 with pinned copies of 50 GB/s. A session of it is what gpusense would record. The answers are in
``tests/exam/answers_simulated.json``, and were there before.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpusense._records.metrics import Pcie
from gpusense.session import Session

from .sessions import H200, MS, US, block, copy, kernel, memset, sample, session, sync

LAUNCHED = 4 * US  # from a launch to the beginning of the work, where nothing is queued before it
PINNED, PAGEABLE = 50.0, 9.0  # bytes a nanosecond
GEMM, GELU = "nvjet_sm90_tst_256x128_64x4_2x1_v_bz_coopA_NNT", "vectorized_elementwise_kernel<GeluCUDAKernelImpl>"
LOSS = ("log_softmax_forward", "nll_loss_forward", "nll_loss_backward", "log_softmax_backward")
OPTIMIZER = ("multi_tensor_apply_kernel<LpNormFunctor>", "clip_coefficient", "multi_tensor_apply_kernel<FusedAdam>")


class Machine:
    """Times in nanoseconds since the program began, on the host (``now``) and on each stream of each device."""

    def __init__(self, devices: int = 1, lanes: int = 16) -> None:
        self.now, self.draw, self.lanes = 2_000 * MS, random.Random(1), lanes
        self.free: dict[tuple[int, int], int] = {}
        self.records: list[object] = []
        self.launches, self.blocks = 0, 0
        self.path: list[str] = []
        self.cards = tuple(
            H200._replace(index=at, cuda_index=at, nvml_index=at, uuid=f"GPU-{at}", pci_bus_id=f"0000:{at}:00.0")
            for at in range(devices)
        )
        self.starts: list[int] = []

    # --- the host ---------------------------------------------------------------------------------------------------

    def host(self, ms: float) -> None:
        """It computes something of its own, and takes a little more or less time each time."""
        self.now += round(ms * MS * self.draw.uniform(0.9, 1.1))

    def steps(self, number: int) -> Iterator[int]:
        """Numbers of steps; notes when each begins and ends."""
        for step in range(number):
            self.starts.append(self.now)
            yield step
        self.wait()
        self.starts.append(self.now)

    @contextmanager
    def block(self, name: str, **attributes: object) -> Iterator[None]:
        self.path.append(name)
        self.blocks += 1
        path, number, start = tuple(self.path), self.blocks, self.now
        yield
        self.records.append(
            block(path, start, self.now, number=number, attributes={**attributes} or None)
        )  # fmt: skip
        self.path.pop()

    def wait(self, device: int = 0) -> None:
        """Until the device has done all that was launched."""
        end = max(self.now, *(end for (of, _), end in self.free.items() if of == device)) + 5 * US
        self.records.append(sync(self.now, end, device=device))
        self.now = end

    def loaded(self, ms: float, **known: int) -> None:
        """The host waits for a batch of a DataLoader, and copies it to the device."""
        attributes = {f"torch.loader.{name}": value for name, value in known.items()}
        with self.block("DataLoader", **attributes):
            self.host(ms)
        self.copy("cpu_to_gpu", 32 << 20)

    # --- the device -------------------------------------------------------------------------------------------------

    def kernel(
        self, name: str, us: float, blocks: int = 2112, launch_us: float = 6, device: int = 0, **fields: object
    ) -> None:
        start, end = self._runs(us * self.draw.uniform(0.99, 1.01) * US, launch_us, device, 7)
        self.records.append(
            kernel(
                *(name, start, end),
                device=device,
                grid=(blocks, 1, 1),
                block=(256, 1, 1),
                registers_per_thread=64,
                correlation_id=self.launches,
                path=tuple(self.path),
                **fields,
            )
        )

    def layers(self, number: int, us: float = 400, launch_us: float = 6, device: int = 0) -> None:
        """Products and what is done to their results."""
        for _ in range(number):
            self.kernel(GEMM, us, launch_us=launch_us, device=device)
            self.kernel(GELU, us / 10, launch_us=launch_us, device=device)

    def forward_and_backward(self, number: int, us: float) -> None:
        """Of a model of so many layers."""
        self.layers(number, us)
        for name in LOSS:
            self.kernel(name, 8)
        for _ in range(number):
            self.kernel("nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_NTN", us)
            self.kernel("nvjet_sm90_tst_256x128_64x4_2x1_v_bz_coopA_TNN", us)
            self.kernel("vectorized_elementwise_kernel<GeluBackwardCUDAKernelImpl>", us / 8)

    def train(self, number: int, us: float) -> None:
        self.forward_and_backward(number, us)
        self.optimize()

    def optimize(self, us: float = 300) -> None:
        for name in OPTIMIZER:
            self.kernel(name, us if name.endswith("Adam>") else 10)

    def graph(self, kernels: "list[tuple[str, float]]", launch_us: float = 15) -> None:
        """Replays a graph of some kernels, which follow each other at once."""
        start, _ = self._runs(0, launch_us, 0, 7)
        for node, (name, us) in enumerate(kernels):
            end = start + round(us * US)
            self.records.append(
                kernel(name, start, end, grid=(264, 1, 1), block=(256, 1, 1), correlation_id=self.launches,
                       graph_id=1, graph_node_id=node)
            )  # fmt: skip
            start = end + 1 * US
        self.free[0, 7] = start

    def copy(self, direction: str, size: int, pinned: bool = True, device: int = 0, stream: int = 7) -> int:
        """When it ends; from pageable memory the host waits for that."""
        rate = min(PAGEABLE, PINNED * self.lanes / 16) if not pinned else PINNED * self.lanes / 16
        start, end = self._runs(size / rate + 1 * US, 8, device, stream)
        memory = {"source": "pinned" if pinned else "pageable", "destination": "device"}
        if direction == "gpu_to_cpu":
            memory = {"source": memory["destination"], "destination": memory["source"]}
        fields = {**memory, "correlation_id": self.launches, "path": tuple(self.path)}
        self.records.append(copy(direction, size, start, end, device=device, stream=stream, **fields))
        self.now = self.now if pinned else end + 2 * US
        return end

    def item(self, device: int = 0) -> None:
        """Reads a value back: a copy to the host and a wait for it."""
        end = self.copy("gpu_to_cpu", 4, device=device) + 5 * US
        self.records.append(sync(self.now, end, device=device))
        self.now = end

    def clear(self, size: int, launch_us: float = 5) -> None:
        start, end = self._runs(1_300, launch_us, 0, 7)
        self.records.append(memset(size, start, end, correlation_id=self.launches, path=tuple(self.path)))

    def _runs(self, length: float, launch_us: float, device: int, stream: int) -> tuple[int, int]:
        self.now += round(launch_us * US * self.draw.uniform(0.8, 1.2))
        self.launches += 1
        start = max(self.now + LAUNCHED, self.free.get((device, stream), 0) + 1 * US)
        self.free[device, stream] = start + round(length)
        return start, start + round(length)

    # --- what is left of it -----------------------------------------------------------------------------------------

    def session(self) -> Session:
        pcie = Pcie(generation=5, width=self.lanes, max_generation=5, max_width=16)
        samples = [sample(at, device=card, pcie=pcie) for card in self.cards for at in range(0, self.now, 100 * MS)]
        return session(*self.records, end=self.now + 50 * MS, devices=self.cards, metrics=samples)

    def truth(self) -> dict[str, float]:
        """As the programs of ``programs/`` measure it."""
        lengths = sorted(end - start for start, end in zip(self.starts, self.starts[1:], strict=False))
        mean = (self.starts[-1] - self.starts[0]) / len(lengths)
        return {"step_ms": mean / MS, "median_step_ms": lengths[len(lengths) // 2] / MS}


PROGRAMS: "dict[str, Callable[[], Machine]]" = {}


def program(run: "Callable[[], Machine]") -> "Callable[[], Machine]":
    PROGRAMS[run.__name__] = run
    return run


@program
def metrics_read_back() -> Machine:
    machine = Machine()
    for _ in machine.steps(40):
        machine.layers(10, 200)
        with machine.block("MulticlassAccuracy"):
            for _ in range(6):
                machine.kernel("reduce_kernel<MaxNanFunctor>", 4)
                machine.item()
                machine.host(0.5)
        machine.train(8, 200)
    return machine


@program
def one_block_scan() -> Machine:
    machine = Machine()
    for _ in machine.steps(60):
        machine.layers(4)
        machine.kernel("serial_scan", 5_000, blocks=1)
        machine.layers(2)
    return machine


@program
def clears_each_gradient() -> Machine:
    machine = Machine()
    for _ in machine.steps(30):
        with machine.block("SGD.zero_grad"):
            for _ in range(600):
                machine.clear(4 << 20)
        machine.train(4, 80)
    return machine


@program
def new_lengths_now_and_then() -> Machine:
    machine, lengths = Machine(), [512] * 8
    for step in machine.steps(100):
        new = step >= 10 and machine.draw.random() < 0.15
        lengths.append(machine.draw.randrange(1024) if new else machine.draw.choice(lengths))
        if new:
            machine.host(350)
        for layer in range(8):
            machine.kernel(f"triton_per_fused_native_layer_norm_{layer}", 150, blocks=lengths[-1] * 8)
            machine.layers(1)
            if new and layer < 3:
                machine.host(120)
        machine.item()
    return machine


@program
def thread_holds_the_interpreter() -> Machine:
    machine = Machine()
    for _ in machine.steps(20):
        for layer in range(12):
            if machine.draw.random() < 0.7:  # each operation that has let the lock go waits for it
                machine.now += 5 * MS + machine.draw.randrange(20 * US, 150 * US)
            machine.kernel(f"layer_{layer % 3}", 120)
            machine.kernel(GELU, 30)
        machine.item()
    return machine


@program
def micro_batches() -> Machine:
    machine = Machine()
    for _ in machine.steps(12):
        for _ in range(8):
            machine.copy("cpu_to_gpu", 1 << 20)
            machine.forward_and_backward(5, 400)
        machine.optimize(6_000)
        machine.item()
    return machine


@program
def logs_every_ten() -> Machine:
    machine = Machine()
    for step in machine.steps(120):
        machine.train(7, 400)
        if step % 10 == 9:
            machine.item()
            machine.host(0.3)
    return machine


@program
def workers_start_each_epoch() -> Machine:
    machine = Machine()
    for step in machine.steps(150):
        machine.loaded(900 if step % 25 == 0 else 0.1, workers=8, batch=step % 25)
        machine.train(8, 1_400)
        machine.item()
    return machine


@program
def saves_as_often_as_workers() -> Machine:
    machine = Machine()
    for step in machine.steps(100):
        machine.loaded(0.1, workers=4, batch=step)
        machine.train(8, 1_400)
        machine.item()
        if step % 4 == 3:
            with machine.block("save"):
                machine.host(140)
    return machine


@program
def weights_come_from_the_host() -> Machine:
    machine = Machine()
    for _ in machine.steps(12):
        for _ in range(12):
            machine.copy("cpu_to_gpu", 400 << 20)
            machine.layers(4, 600)
        for name in LOSS:
            machine.kernel(name, 8)
        for _ in range(12):
            machine.copy("cpu_to_gpu", 400 << 20)
            machine.forward_and_backward(4, 600)
            machine.copy("gpu_to_cpu", 200 << 20)
        machine.item()
    return machine


@program
def link_of_four_lanes() -> Machine:
    machine = Machine(lanes=4)
    for _ in machine.steps(60):
        machine.copy("cpu_to_gpu", 128 << 20)
        machine.train(4, 250)
    return machine


@program
def layers_on_two_gpus() -> Machine:
    machine = Machine(devices=2)
    for _ in machine.steps(50):
        for device in (0, 1):
            machine.layers(30, 500, device=device)
            machine.kernel(("rms_norm", "argmax")[device], 12, device=device)
            if device == 0:  # what it gives goes to the other one, which waits for that
                end = machine.copy("gpu_to_gpu", 16 << 20, device=0)
                machine.free[1, 7] = max(machine.free.get((1, 7), 0), end)
        machine.item(device=1)
        machine.host(0.4)
    return machine


@program
def double_precision() -> Machine:
    machine = Machine()
    for _ in machine.steps(40):
        for _ in range(10):
            machine.kernel("cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1", 900)
            machine.kernel("vectorized_elementwise_kernel<CUDAFunctor_add<double>>", 60)
        for name in LOSS:
            machine.kernel(name, 30)
    return machine


@program
def layouts_converted() -> Machine:
    machine = Machine()
    for _ in machine.steps(40):
        for _ in range(20):
            machine.kernel("nchwToNhwcKernel<__nv_bfloat16, __nv_bfloat16, float, false, true>", 70)
            machine.kernel("sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc", 260)
            machine.kernel("nhwcToNchwKernel<__nv_bfloat16, __nv_bfloat16, float, true, false>", 70)
            machine.kernel("bn_fw_tr_1C11_kernel_NCHW<float>", 60)
        for name in LOSS:
            machine.kernel(name, 8)
        machine.optimize()
    return machine


@program
def python_between_graphs() -> Machine:
    machine = Machine()
    layers = [("gemv2T_kernel_val", 8.0), ("rms_norm_kernel", 3.0)] * 60
    decode = [("decode_embed", 4.0), *layers, *layers, ("decode_sample", 9.0)]
    for _ in machine.steps(60):
        machine.graph(decode)
        machine.item()
        machine.host(3)
    return machine
