"""What a session means: pure functions over it, no I/O and no ctypes.

In: a :class:`~gpusense.session.Session`. Out: named tuples, and findings in sentences.
Reports, the tracer's summary and the command import it.
"""
