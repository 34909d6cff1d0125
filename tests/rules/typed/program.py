"""A user's program for type checkers: ``mypy --strict`` must accept it, and know every type that stands here."""

from collections.abc import AsyncIterator, Iterator

import gpusense


@gpusense.trace("forward")
def forward(batch: int) -> str:
    return str(batch)


@gpusense.trace
def bare(batch: int) -> str:
    return str(batch)


@gpusense.trace("later", {"batch": 64})
async def later(batch: int) -> float:
    return batch / 2


@gpusense.trace()
def numbers(count: int) -> Iterator[int]:
    yield from range(count)


@gpusense.trace("arriving")
async def arriving(count: int) -> AsyncIterator[int]:
    for number in range(count):
        yield number


@gpusense.compute_block("normalise", elements=3)
def normalise(values: list[float]) -> float:
    return sum(values)


class Model:
    @gpusense.trace("method")
    def method(self, batch: int) -> int:
        return batch

    @gpusense.trace("static")
    @staticmethod
    def static(batch: int) -> int:
        return batch


def on_metrics(metrics: gpusense.GpuMetrics) -> None:
    print(metrics.power.draw_watts)


def whole(block: gpusense.Block) -> gpusense.BlockSummary:
    return block.summary()


def settings() -> gpusense.Settings:
    return gpusense.configure(threshold_us=3, mode="on", devices=[0], hang_after=None, sinks=[print])


def direction(upload: bool) -> gpusense.Direction:
    return "cpu_to_gpu" if upload else "gpu_to_cpu"


async def main() -> None:
    with gpusense.trace("step", {"batch": 64}) as block:
        text: str = forward(3) + bare(4)
        half: float = await later(3)
        total: int = sum(numbers(3)) + Model().method(3) + Model.static(3)
        mean: float = normalise([1.0])
    number: int = block.block_id
    dumped: str | None = gpusense.dump("incident.gpusense")
    path: tuple[str, ...] = block.path
    gpu_ns: int | None = block.summary().gpu_ns
    settings_threshold: float = gpusense.configure(threshold_us=3).threshold_us
    names: list[str] = [device.name for device in gpusense.devices()]
    used: list[int | None] = [usage.memory_used_bytes for usage in gpusense.own_usage()]
    with gpusense.monitor.start_background(on_metrics, interval=0.1) as monitor:
        latest: tuple[gpusense.GpuMetrics, ...] = monitor.latest()
    gpusense.record_transfer("mesh", "cpu_to_gpu", bytes=3, duration_ns=4)
    tracer: gpusense.Tracer = gpusense.get_tracer()
    whole(block)
    tracer.print_summary()
    rows: list[str] = [row.name for row in tracer.summary().operations]
    longest: list[int] = [row.total_ns for row in tracer.bottlenecks(top_n=5)]
    sums: list[int | None] = [row.gpu_ns for row in tracer.session().summary().operations]
    kernels: int = len(tracer.session().kernels)
    refused = gpusense.detach()
    if refused is not None:
        print(refused.reason)
    print(text, half, total, mean, number, path, gpu_ns, settings_threshold, names, used, latest)
    print(rows, longest, sums, kernels, dumped)


wrong: int = forward(3)  # type: ignore[assignment]
print(gpusense.get_tracer().summary().no_such_field)  # type: ignore[attr-defined]
print(gpusense.get_tracer().session().no_such_field)  # type: ignore[attr-defined]
print(gpusense.get_tracer().bottlenecks()[0].no_such_field)  # type: ignore[attr-defined]
gpusense.configure(thresold_us=3)  # type: ignore[arg-type]
gpusense.configure(threshold_us="3")  # type: ignore[arg-type]
gpusense.record_transfer("mesh", "upwards", bytes=3)  # type: ignore[arg-type]
gpusense.record_kernel("k", duraton_ns=3)  # type: ignore[call-arg]
gpusense.record_kernel("k", duration_ns=3, device="first")  # type: ignore[arg-type]
gpusense.record_kernel("k", duration_ns=3, device=0, grid=(8, 1, 1), attributes={"pass": 1})
gpusense.get_tracer().record_transfer("mesh", "cpu_to_gpu", sorce="pinned")  # type: ignore[call-arg]
print(gpusense.compute_block("sort").no_such_field)  # type: ignore[attr-defined]
forward("text")  # type: ignore[arg-type]
