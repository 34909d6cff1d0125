"""Theoretical occupancy of a kernel launch, from registers, shared memory, block size and the device's limits. Pure.

The rules and the numbers below are those of NVIDIA's public documents: the CUDA C++ Programming Guide, "Compute
Capabilities" (warps, blocks, registers and shared memory of a multiprocessor, the 1 KiB reserved a block from 8.0 on),
the tuning guides of each architecture, and the occupancy calculator of Nsight Compute (allocation units). What a device
says of itself goes before the tables.

Not modelled: thread-block clusters, and a shared-memory carve-out that the program chose.
"""

from typing import NamedTuple

from .records import DeviceInfo, GpuKernel

WARP = 32
_REGISTER_UNIT = 256  # registers are given to a warp in units of this many, on every architecture from 5.0
_MAX_REGISTERS_PER_THREAD = 255

# Blocks an SM holds at a time ("Maximum number of resident blocks per SM"), where the driver was not asked for it.
_BLOCKS_PER_SM = {(7, 5): 16, (8, 6): 16, (8, 7): 16, (8, 9): 24, (11, 0): 24, (12, 0): 24, (12, 1): 24}
_BLOCKS_PER_SM_OTHERWISE = 32

# Registers one block may use ("Maximum number of 32-bit registers per thread block"): half of the SM's on two chips.
_REGISTERS_PER_BLOCK = {(5, 3): 32768, (6, 2): 32768}
_REGISTERS_PER_BLOCK_OTHERWISE = 65536


class Limits(NamedTuple):
    """What one multiprocessor has to share among blocks."""

    compute_capability: tuple[int, int]
    threads_per_sm: int
    registers_per_sm: int
    shared_memory_per_sm_bytes: int
    blocks_per_sm: int
    registers_per_block: int
    reserved_shared_memory_per_block_bytes: int
    threads_per_block: int = 1024
    shared_memory_per_block_bytes: int | None = None  # the most a block may opt in to

    @classmethod
    def of(cls, device: DeviceInfo) -> "Limits | None":
        """The limits a device's driver told, the rest by compute capability; None if too little is known."""
        capability = device.compute_capability
        if capability is None or not (
            device.threads_per_sm and device.registers_per_sm and device.shared_memory_per_sm_bytes
        ):
            return None
        told = {name: int(value) for name, value in device.details if value.isdigit()}
        reserved = 1024 if capability >= (8, 0) else 0
        return cls(
            compute_capability=capability,
            threads_per_sm=device.threads_per_sm,
            registers_per_sm=device.registers_per_sm,
            shared_memory_per_sm_bytes=device.shared_memory_per_sm_bytes,
            blocks_per_sm=told.get("blocks_per_sm") or _BLOCKS_PER_SM.get(capability, _BLOCKS_PER_SM_OTHERWISE),
            registers_per_block=told.get("registers_per_block")
            or _REGISTERS_PER_BLOCK.get(capability, _REGISTERS_PER_BLOCK_OTHERWISE),
            reserved_shared_memory_per_block_bytes=told.get("reserved_shared_memory_per_block_bytes", reserved),
            threads_per_block=told.get("threads_per_block") or 1024,
            shared_memory_per_block_bytes=told.get("shared_memory_per_block_optin_bytes"),
        )


def occupancy(limits: Limits, threads: int, registers: int, static_shared: int = 0, dynamic_shared: int = 0) -> float:
    """Share of the SM's warps that this launch can keep resident, 0…1; 0 for a launch that cannot start.

    ``threads`` a block, ``registers`` a thread, shared memory in bytes a block.
    """
    blocks = blocks_per_sm(limits, threads, registers, static_shared, dynamic_shared)
    return blocks * _divide_up(threads, WARP) / (limits.threads_per_sm // WARP)


def blocks_per_sm(limits: Limits, threads: int, registers: int, static_shared: int = 0, dynamic_shared: int = 0) -> int:
    """Blocks of this launch that fit on one SM at a time: what ``cuOccupancyMaxActiveBlocksPerMultiprocessor`` says."""
    if not 0 < threads <= limits.threads_per_block:
        return 0
    warps = _divide_up(threads, WARP)
    return min(
        limits.blocks_per_sm,
        limits.threads_per_sm // WARP // warps,
        _by_registers(limits, warps, registers),
        _by_shared_memory(limits, static_shared + dynamic_shared),
    )


def _by_registers(limits: Limits, warps: int, registers: int) -> int:
    """An SM's registers lie in equal parts, one a scheduler, and a warp's registers all lie in one of them."""
    if registers <= 0:
        return limits.blocks_per_sm
    per_warp = _round_up(registers * WARP, _REGISTER_UNIT)
    if registers > _MAX_REGISTERS_PER_THREAD or per_warp * warps > limits.registers_per_block:
        return 0
    parts = 2 if limits.compute_capability == (6, 0) else 4
    return limits.registers_per_sm // parts // per_warp * parts // warps


def _by_shared_memory(limits: Limits, requested: int) -> int:
    most = limits.shared_memory_per_block_bytes
    if most is not None and requested > most:
        return 0
    unit = 128 if limits.compute_capability >= (8, 0) else 256
    used = _round_up(requested + limits.reserved_shared_memory_per_block_bytes, unit)
    return limits.shared_memory_per_sm_bytes // used if used else limits.blocks_per_sm


def _divide_up(value: int, unit: int) -> int:
    return -(-value // unit)


def _round_up(value: int, unit: int) -> int:
    return _divide_up(value, unit) * unit


def of_kernel(kernel: GpuKernel, limits: Limits | None) -> float | None:
    """Theoretical occupancy of a recorded launch; None where the launch or the device is not known well enough.

    A launch that ran had room on the device: an answer of 0 means that a limit is not known, and gives None too.
    """
    if limits is None or kernel.block is None or kernel.registers_per_thread is None:
        return None
    x, y, z = kernel.block
    shared = kernel.static_shared_bytes or 0, kernel.dynamic_shared_bytes or 0
    return occupancy(limits, x * y * z, kernel.registers_per_thread, *shared) or None
