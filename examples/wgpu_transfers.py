"""Uploads to a wgpu device and downloads from it: bytes, time and bandwidth of each, and how long the program waited.

Any adapter will do, a software one too; where there is none, or no wgpu package, it says so.

    python examples/wgpu_transfers.py [MiB]
"""

import sys

import gpusense
from gpusense.integrations import wgpu_py


def open_device():
    """wgpu's device, or None and a line that says why."""
    answer = wgpu_py.instrument()
    if not answer:
        print(f"nothing to copy to: {answer}")
        return None
    import wgpu

    try:
        adapter = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
    except RuntimeError as error:
        print(f"nothing to copy to: {error}")
        return None
    print(f"{adapter.info['device']} through {adapter.info['backend_type']}")
    return adapter.request_device_sync()


def main() -> None:
    size = (int(sys.argv[1]) if len(sys.argv) > 1 else 8) << 20
    gpusense.configure(trace_all=True)
    gpusense.enable()
    device = open_device()
    if device is None:
        return
    buffer = device.create_buffer(label="frame", size=size, usage="COPY_DST | COPY_SRC")
    data = bytes(size)
    for _ in range(3):
        device.queue.write_buffer(buffer, 0, data)
        device.queue.read_buffer(buffer)
    wgpu_py.flush()
    for copy in gpusense.get_tracer().session().transfers:
        line = f"{copy.name:20} {copy.direction} {copy.bytes / 1e6:6.1f} MB in {copy.duration_ns / 1e6:6.2f} ms"
        line += f" = {copy.bandwidth_mb_per_s / 1e3:5.2f} GB/s"
        print(line + (f", of it {copy.wait_ns / 1e6:.2f} ms waiting" if copy.wait_ns else ""))
    print("These are the host's times: what a write takes is the copy into staging memory, not the bus.")


if __name__ == "__main__":
    main()
