"""Hardware counters through CUPTI's profiler, which is apart from its records. Loaded by who asks for counters alone.

In: a device. Out: :class:`CounterSample` and :class:`BlockCounters`. Only the recorder and doctor import it.
"""
