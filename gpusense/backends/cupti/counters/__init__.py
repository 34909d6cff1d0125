"""Hardware counters through CUPTI's profiler, which is apart from its records. Loaded by who asks for counters alone.

In: a device. Out: :class:`CounterSample` and :class:`BlockCounters`. The tracer, doctor and integrations import it.
"""

#: Devices that are sampled in this process: CUPTI must not be taken out of it meanwhile.
SAMPLED: set[int] = set()
