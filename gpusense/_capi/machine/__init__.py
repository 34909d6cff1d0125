"""Machine code as bytes, each beside its assembly, and the pages it is mapped into.

In: code and addresses. Out: addresses of functions that C libraries may call without the GIL.
"""
