"""A sink of one's own: it gets lists of finished records, on gpusense's thread.

python examples/custom_sink.py
"""

import collections

import gpusense

gpusense.enable()
longest = collections.Counter()


def keep_longest(records):
    for record in records:
        if isinstance(record, (gpusense.GpuKernel, gpusense.GpuMemoryTransfer)):
            longest[record.name] = max(longest[record.name], record.duration_ns)


# From 50 µs on records come one by one; shorter ones are only summed.
gpusense.configure(threshold_us=50, sinks=[keep_longest])
for i in range(1, 6):
    gpusense.record_kernel("my_kernel", duration_ns=i * 40_000)
gpusense.get_tracer().flush()

print(dict(longest))
counters = gpusense.get_tracer().session().counters
print(f"{counters.kept} listed, {counters.aggregated} summed")
