"""NCCL: which collectives ran, with which algorithm, how many bytes, and when each channel began and ended.

In: NCCL's profiler interface, versions 2 to 6, filled with machine code (``plugin``). Out: records of
:class:`GpuCollective` (``events``).
"""
