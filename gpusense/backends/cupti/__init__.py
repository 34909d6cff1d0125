"""CUDA's activity records: one subscription a process, buffers filled without the GIL.

In: libcupti, as found. Out: finished buffers, lent one at a time to whoever joined.
"""
