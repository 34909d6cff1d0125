"""AMD cards: the kernel's files first (``sysfs``), librocm_smi behind a self-test in a child (``rocm_smi``).

In: /sys, and the library as found. Out: an ``open()`` each.
"""
