"""What a device can do at most: operations a second by the type of the factors, and bytes a second of its memory.

Rates are those of dense operations at the clock that the data sheets reckon with: multiprocessors × operations a cycle
× clock. Sources: NVIDIA's architecture papers (Volta, Turing, A100, GA102, Ada, H100, RTX Blackwell) and, for what
tensor cores do not do, the CUDA C++ Programming Guide, "Arithmetic Instructions".
"""

from typing import NamedTuple

from .._records.records import DeviceInfo

#: Single-precision lanes a multiprocessor, by compute capability; a multiply-add is two operations.
_LANES = {
    (5, 0): 128,
    (5, 2): 128,
    (6, 0): 64,
    (6, 1): 128,
    (7, 0): 64,
    (7, 5): 64,
    (8, 0): 64,
    (8, 6): 128,
    (8, 7): 128,
    (8, 9): 128,
    (9, 0): 128,
    (10, 0): 128,
    (12, 0): 128,
}
#: The same of double precision and of pairs of half precision, which are two lanes.
_DOUBLE = {(6, 0): 32, (7, 0): 32, (7, 5): 2, (8, 0): 32, (8, 6): 2, (8, 9): 2, (9, 0): 64, (10, 0): 64, (12, 0): 2}
_HALF = {(6, 0): 128, (7, 0): 128, (7, 5): 128, (8, 0): 256, (8, 6): 128, (8, 9): 128, (9, 0): 256, (12, 0): 128}

_Rates = dict[str, int]


def _rates(half: int, **others: int) -> _Rates:
    return {"fp16": half, "bf16": half, "tf32": half // 2, **others}


#: Operations a cycle that the tensor cores of one multiprocessor do, sums in single precision.
_TENSOR: dict[tuple[int, int], _Rates] = {
    (7, 0): {"fp16": 1024},
    (7, 5): {"fp16": 1024, "int8": 2048, "int4": 4096},
    (8, 0): _rates(2048, fp64=128, int8=4096, int4=8192),
    (8, 6): _rates(1024, int8=2048, int4=4096),
    (8, 9): _rates(1024, fp8=2048, int8=2048, int4=4096),
    (9, 0): _rates(4096, fp8=8192, int8=8192, fp64=256),
    (10, 0): _rates(8192, fp8=16384, int8=16384, fp4=32768),
    (12, 0): _rates(1024, fp8=2048, int8=2048, fp4=4096),
}
#: Of these, GeForce cards do half of what sums in single precision.
_HALVED = ("fp16", "bf16", "tf32", "fp8")
_GEFORCE = ((7, 5), (8, 6), (8, 9), (12, 0))
#: Highest clock of Hopper, MHz → the one of its tensor cores' data sheet: SXM, PCIe, NVL.
_TENSOR_CLOCK = {1980: 1830, 1755: 1620, 1785: 1545}


class Peaks(NamedTuple):
    """What a device can reach at most; None where it is not known."""

    flops_per_s: float | None  # single precision, without tensor cores
    bytes_per_s: float | None
    tensor: tuple[tuple[str, float], ...] = ()  # operations a second by the type of the factors, highest first
    others: tuple[tuple[str, float], ...] = ()  # the same without tensor cores

    def of(self, type_name: str, tensor: bool) -> float | None:
        """Operations a second of one type."""
        return dict(self.tensor if tensor else self.others).get(type_name)


def peaks(device: DeviceInfo | None) -> Peaks:
    """Peak rates from clocks and widths. Those of the memory are 2 (both edges of its clock) × clock × bus width ÷ 8.
    None, or a type left out, where a part is not known."""
    if device is None:
        return Peaks(None, None)
    bandwidth = None
    if device.memory_clock_max_mhz and device.memory_bus_width_bits:
        bandwidth = 2 * device.memory_clock_max_mhz * 1e6 * device.memory_bus_width_bits / 8
    generation = device.compute_capability or (0, 0)
    if not device.sm_count or not device.clock_max_mhz:
        return Peaks(None, bandwidth)
    each = device.sm_count * device.clock_max_mhz * 1e6  # of one operation a cycle
    lanes = {"fp32": _LANES.get(generation), "fp64": _DOUBLE.get(generation), "fp16": _HALF.get(generation)}
    others = {name: 2 * number * each for name, number in lanes.items() if number}
    slower = {"fp64": 1.0}  # of the clock, by type
    hopper = _TENSOR_CLOCK.get(round(device.clock_max_mhz)) if generation == (9, 0) else None
    usual = hopper / device.clock_max_mhz if hopper else 1.0
    if generation in _GEFORCE and "geforce" in device.name.lower():
        slower.update(dict.fromkeys(_HALVED, 0.5))
    tensor = {name: number * each * slower.get(name, usual) for name, number in _tensor_rates(device).items()}
    return Peaks(others.get("fp32"), bandwidth, _sorted(tensor), _sorted(others))


def _tensor_rates(device: DeviceInfo) -> _Rates:
    """Of the H20, whose tensor cores are cut, nothing is known; GTX 16 cards have none."""
    if device.name.upper().endswith(" H20") or "GTX 16" in device.name.upper():
        return {}
    return _TENSOR.get(device.compute_capability or (0, 0), {})


def _sorted(rates: dict[str, float]) -> tuple[tuple[str, float], ...]:
    return tuple(sorted(rates.items(), key=lambda item: (-item[1], item[0])))
