"""GPU work, visible from inside a Python process."""

__version__ = "0.1.0"
