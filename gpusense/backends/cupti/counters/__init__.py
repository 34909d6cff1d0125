"""Hardware counters through CUPTI's profiler, which is apart from its records. Loaded by who asks for counters alone.

In: a device. Out: :class:`CounterSample` and :class:`BlockCounters`. The tracer, doctor and integrations import it.
"""

#: Devices that are sampled in this process, and those whose ranges can be counted, which is one at most: CUPTI must not
#: be taken out of it meanwhile, and a device is not for both.
SAMPLED: set[int] = set()
COUNTED: set[int] = set()
