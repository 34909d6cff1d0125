"""Pure functions over a session: no I/O, no ctypes."""
