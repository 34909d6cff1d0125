"""Bytes of CUPTI's activity buffers become columns of integers and records: no ctypes, no clock, no thread.

In: a buffer and the sizes of its records. Out: batches of columns (``walk``), and single records of them (``record``).
Every room above may import it; it knows the records alone.
"""
