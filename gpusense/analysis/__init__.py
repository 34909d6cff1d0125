"""Pure functions over a :class:`~gpusense.session.Session`: no I/O, no ctypes. Answers are NamedTuples."""

from .finding import Finding, findings, verdict
from .operation import Operation, operations

__all__ = ["Finding", "Operation", "findings", "operations", "verdict"]
