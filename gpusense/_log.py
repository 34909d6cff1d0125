"""Loggers named after this package wherever it lives, imported on first message, each warning once a process."""

_said: set[str] = set()


def _logger() -> "logging.Logger":  # type: ignore[name-defined]  # noqa: F821
    import logging

    logger = logging.getLogger(__name__.rpartition(".")[0])
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    return logger


def debug(message: str, *args: object) -> None:
    _logger().debug(message, *args)


def once(key: str, message: str, *args: object) -> None:
    """A WARNING the first time ``key`` occurs in this process, DEBUG afterwards."""
    if key in _said:
        _logger().debug(message, *args)
        return
    _said.add(key)
    _logger().warning(message, *args)


def exception(key: str, message: str, *args: object) -> None:
    """As :func:`once`, with the traceback of the exception being handled."""
    if key in _said:
        return
    _said.add(key)
    _logger().warning(message, *args, exc_info=True)
