"""Loggers named after this package wherever it lives, imported on first message, each warning once a process.

Nothing here raises: handlers are the host's, memory may be gone, and at interpreter shutdown nothing can be imported.
"""

from . import package
from .interrupts import is_the_programs

MAX_SAID = 1_000  # different warnings of a process

_said: set[str] = set()


def _logger() -> "logging.Logger":  # type: ignore[name-defined]  # noqa: F821
    import logging

    logger = logging.getLogger(package.NAME)
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    return logger


def debug(message: str, *args: object) -> None:
    """For what is absent or failed without consequence."""
    _say("debug", message, args)


def once(key: str, message: str, *args: object) -> None:
    """A WARNING the first time ``key`` occurs in this process, DEBUG afterwards."""
    if key in _said or len(_said) >= MAX_SAID:
        _say("debug", message, args)
        return
    _said.add(key)
    _say("warning", message, args)


def exception(key: str, message: str, *args: object) -> None:
    """As :func:`once`, with the traceback of the exception being handled."""
    if key in _said or len(_said) >= MAX_SAID:
        return
    _said.add(key)
    _say("warning", message, args, exc_info=True)


def _say(level: str, message: str, args: tuple[object, ...], exc_info: bool = False) -> None:
    try:
        getattr(_logger(), level)(f"gpusense: {message}", *args, exc_info=exc_info)
    except Exception as error:
        if is_the_programs(error):
            raise
