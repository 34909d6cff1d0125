"""gpusense on a laptop without a GPU: nothing breaks, what is not there is empty or None, with a reason.

The same program says more where there is a GPU; not a line of it changes.

    python examples/without_a_gpu.py
"""

import gpusense
from gpusense import cuda, doctor, monitor
from gpusense.integrations import wgpu_py


@gpusense.trace("squares")
def squares(count: int) -> int:
    return sum(number * number for number in range(count))


def main() -> None:
    # Not one of these raises.
    print("devices:", [device.name for device in gpusense.devices()])
    print("temperatures:", [sample.thermal.gpu_celsius for sample in monitor.snapshot()])
    print("CUDA:", "there" if cuda.cuda_available() else "not there")

    # A block costs next to nothing and is forgotten, unless you ask for it: CPU work can be timed, too.
    squares(1000)
    print("blocks kept:", [block.name for block in gpusense.get_tracer().session().blocks])
    gpusense.enable()
    with gpusense.trace("work") as block:
        squares(100_000)
    told = block.summary()
    print("blocks kept from then on:", [one.name for one in gpusense.get_tracer().session().blocks])
    print(f"work took {told.wall_ns / 1e6:.1f} ms; kernels in it: {told.kernel_count}, because {told.reason}")

    # What cannot be had is false in a condition, and says why.
    wgpu = wgpu_py.instrument()
    print("wgpu:", "traced" if wgpu else wgpu)
    for check in doctor.backends():
        print(f"{check.name:10} {'found' if check.available else f'not found: {check.reason}'}")


if __name__ == "__main__":
    main()
