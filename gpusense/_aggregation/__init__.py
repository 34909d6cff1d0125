"""Work that has its place: long enough to be listed, or summed with its like. Pure.

In: segments of batches. Out: records for sinks, and sums by block, kind, name, device and stream.
"""
