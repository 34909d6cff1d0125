"""Recording as it goes on: when capture is on, what comes of its buffers, where records go.

In: buffers from ``backends.cupti``, by :meth:`recorder.Recorder.on_buffer`; items of the queue, from ``_tracing``.
Out: lists of records for sinks, and a session: from memory (``live_store``) or in a file (``file_store``).
``_tracing``, exporters and integrations import this room; ``file_store`` is imported where a file is written.
"""
