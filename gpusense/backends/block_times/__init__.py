"""How long the device took for each block, by events at its ends: no CUPTI, nothing at a launch.

In: blocks as they open and close (a listener of the tracer), and the current streams of the libraries that the program
uses (``hosts``). Out: records of :class:`GpuBlockTime` (``source``). The driver's part is in ``marks``.
"""
