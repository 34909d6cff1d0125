"""What resolving queries costs the GPU: the time of a submission that resolves n of them, by n.

Run by hand: ``python benchmarks/gpu/wgpu_resolve.py``. gpusense resolves two queries for each wgpu pass, in submissions
of its own; hand-written time stamps that are never read do not. The host waits for each submission, so the first column
is what any submission costs, and the slope is the GPU's part.
"""

import statistics
import time

import wgpu

SIZES = (2, 64, 256, 512, 1024)


def main() -> None:
    adapter = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
    device = adapter.request_device_sync(required_features=["timestamp-query"])
    usage = wgpu.BufferUsage
    target = device.create_buffer(size=8 * max(SIZES), usage=usage.QUERY_RESOLVE | usage.COPY_SRC)
    answer = device.create_buffer(size=256, usage=usage.COPY_SRC | usage.COPY_DST)
    queries = device.create_query_set(type="timestamp", count=max(SIZES))
    encoder = device.create_command_encoder()
    for first in range(0, max(SIZES), 2):  # an unwritten query may stall a device for seconds
        writes = {"beginning_of_pass_write_index": first, "end_of_pass_write_index": first + 1}
        encoder.begin_compute_pass(timestamp_writes={"query_set": queries, **writes}).end()
    device.queue.submit([encoder.finish()])
    device.queue.read_buffer(answer)
    taken: dict[int, list[float]] = {size: [] for size in SIZES}
    for _ in range(60):
        for size, times in taken.items():
            encoder = device.create_command_encoder()
            encoder.resolve_query_set(queries, 0, size, target, 0)
            commands = encoder.finish()
            start = time.perf_counter_ns()
            device.queue.submit([commands])
            device.queue.read_buffer(answer)
            times.append((time.perf_counter_ns() - start) / 1e3)
    print(f"wgpu {wgpu.__version__} on {adapter.info['device']}")
    least = statistics.median(taken[SIZES[0]])
    for size, times in taken.items():
        middle = statistics.median(times)
        slope = f"  {(middle - least) / (size - SIZES[0]):.3f} µs a query" if size > SIZES[0] else ""
        print(f"  {size:5} queries {middle:8.1f} µs{slope}")


if __name__ == "__main__":
    main()
