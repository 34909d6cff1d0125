"""The exceptions gpusense raises, all below :class:`GpuSenseError`."""

import errno


class GpuSenseError(Exception):
    """Root of every exception raised on purpose by gpusense."""


class BackendError(GpuSenseError):
    """A vendor library answered with an error code.

    The C name stays in the message, because that is what users search for:
    ``nvmlDeviceGetPowerUsage: NOT_SUPPORTED (3)``.
    """

    def __init__(self, call: str, code: int, text: str) -> None:
        super().__init__(f"{call}: {text} ({code})")
        self.call = call
        self.code = code
        self.text = text

    def __reduce__(self) -> tuple[type, tuple[str, int, str]]:
        """Its own arguments and not the message, so that it comes through a process pool."""
        return type(self), (self.call, self.code, self.text)


class BackendUnavailable(GpuSenseError):
    """What was asked for by name is not there: under ``configure(strict=True)``, and from :mod:`gpusense.cuda`."""


class ConfigurationError(GpuSenseError, ValueError):
    """A setting has an unknown name or an impossible value; the message says what would be right."""


class NotYet(GpuSenseError):
    """Not possible now, but perhaps later without anything being changed."""


class SessionError(GpuSenseError):
    """A file is not a gpusense session, or of a version this reader does not know."""


class NotWritten(GpuSenseError, OSError):
    """A report could not be written where it was asked to be; the message says why."""


class MissingSymbol(GpuSenseError):
    """A function was called that the loaded library does not export."""


def name_extra(error: ImportError, extra: str) -> ImportError:
    """``error``, which says once how to install what is missing."""
    hint = f"pip install 'gpusense[{extra}]'"
    if hint not in str(error):
        error.msg = f"{error}; {hint}"
    return error


def wants_room(error: BaseException) -> bool:
    """Whether ``error`` is that no descriptor or memory is left, as there may be again soon."""
    return isinstance(error, OSError) and error.errno in (errno.ENOMEM, errno.ENFILE, errno.EMFILE)
