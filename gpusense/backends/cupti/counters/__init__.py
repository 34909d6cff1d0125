"""Hardware counters through CUPTI's profiler, which is apart from its records. Loaded by who asks for counters alone.

In: a device. Out: :class:`CounterSample` and :class:`BlockCounters`. The tracer, doctor and integrations import it.
"""

#: Devices that were sampled in this process: CUPTI is not taken out of it any more, since its profiler has no safe end.
SAMPLED: set[int] = set()
