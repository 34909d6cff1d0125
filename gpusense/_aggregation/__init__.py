"""Work that has its place: long enough to be listed, or summed with its like. Pure.

In: buffers and finished records (``pipeline``). Out: records for sinks; sums by block, kind, name, device and stream.
Capture, sessions, tracing and integrations import it; it knows decoding and attribution, and no library.
"""
