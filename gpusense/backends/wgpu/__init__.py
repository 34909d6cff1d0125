"""wgpu-native: adapters as devices, asked in a child process, so that no driver is loaded into the program.

In: the library as found, and Vulkan's loader beside it. Out: ``source.open()`` and ``source.self_test()``.
"""
