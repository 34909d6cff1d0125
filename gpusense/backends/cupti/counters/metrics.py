"""Which metric of a chip becomes which field of a :class:`CounterSample`. Data only."""

_SHARE = ".avg.pct_of_peak_sustained_elapsed"

#: Field → (names, the best first; what a value is multiplied with). What stands first is kept first where not all
#: can be counted together. Names differ by chip: Turing has no ``realtime``, Blackwell for workstations no ``dram``.
FIELDS: dict[str, tuple[tuple[str, ...], float]] = {
    "sm_active_percent": ((f"sm__cycles_active{_SHARE}",), 1),
    "tensor_percent": (
        (f"sm__pipe_tensor_cycles_active_realtime{_SHARE}", f"sm__pipe_tensor_cycles_active{_SHARE}"),
        1,
    ),
    "dram_read_bytes": (("dram__bytes_read.sum", "fbpa__dram_read_bytes.sum"), 1),
    "dram_write_bytes": (("dram__bytes_write.sum", "fbpa__dram_write_bytes.sum"), 1),
    "dispatches": (("gr__dispatch_count.sum",), 1),
    "graphics_engine_percent": ((f"gr__cycles_active{_SHARE}",), 1),
    "sm_clock_mhz": (("sm__cycles_elapsed.avg.per_second",), 1e-6),
    "pcie_rx_bytes": (("pcie__read_bytes.sum",), 1),
    "pcie_tx_bytes": (("pcie__write_bytes.sum",), 1),
    "sm_occupancy_percent": (
        (
            f"sm__warps_active_realtime{_SHARE}",
            f"sm__warps_active{_SHARE}",
            f"tpc__warps_active_shader_cs_realtime{_SHARE}",
        ),
        1,
    ),
    "l2_bytes": (("lts__t_bytes.sum",), 1),
    "nvlink_rx_bytes": (("nvlrx__bytes.sum",), 1),
    "nvlink_tx_bytes": (("nvltx__bytes.sum",), 1),
    "copy_engine_percent": (
        (f"gpu__scheduler_engine_asyncce0_cycles_active{_SHARE}", f"gpu__engine_cycles_active_any_asyncce{_SHARE}"),
        1,
    ),
}
