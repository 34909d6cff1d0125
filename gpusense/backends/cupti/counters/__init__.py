"""Hardware counters through CUPTI's profiler, which is apart from its records. Loaded by who asks for counters alone.

In: a device. Out: :class:`CounterSample` and :class:`BlockCounters`. The tracer, doctor and integrations import it.
"""

#: Devices that were sampled in this process, and those whose ranges were counted, which is one at most. CUPTI is not
#: taken out of it any more, since its profiler has no safe end; and a device is not for both.
SAMPLED: set[int] = set()
COUNTED: set[int] = set()
