"""Bytes of CUPTI's activity buffers become columns of integers and records: no ctypes, no clock, no thread.

In: a buffer and the layout of its records. Out: batches of columns. Attribution and aggregation read them.
"""
