"""wgpu-native: adapters as devices, asked in a child process, and the records of passes that are timed in this one.

In: the library as found, Vulkan's loader beside it, finished passes of an integration. Out: ``source.open()``,
``source.self_test()``, and ``source.SOURCE``, which hands records to a tracer.
"""
