"""NVIDIA's management library: devices and their samples, by lanes of different cost.

In: libnvidia-ml, as found, and what /sys says of sleeping devices. Out: ``source.open()``. The monitor samples it.
"""
