"""Recording as it goes on: when capture is on, what comes of its buffers, where records go.

In: buffers from ``backends.cupti``, boundaries and records from ``_tracing``.
Out: lists of records for sinks, or a file.
"""
