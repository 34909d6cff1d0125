"""Pure functions over a :class:`~gpusense.session.Session`: no I/O, no ctypes. Answers are NamedTuples."""

from .finding import Finding
from .operation import Operation, operations
from .ranking import findings, verdict

__all__ = ["Finding", "Operation", "findings", "operations", "verdict"]
