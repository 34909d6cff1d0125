"""``@trace(...)`` for functions, coroutines, generators and asynchronous generators."""

import functools
from collections.abc import Callable
from typing import Any

_GENERATOR, _COROUTINE, _ASYNC_GENERATOR = 0x20, 0x80, 0x200  # flags of a code object (inspect.CO_…)


def decorated(function: Any, name: Any, attributes: Any, links: Any) -> Any:
    """``function`` inside a block at every call; a generator's block is open while its own code runs.

    A static or class method and a property stay what they are. A class, and what cannot be called, is given back as is.
    """
    from .. import trace

    label = name if name is not None else getattr(function, "__qualname__", repr(function))
    return wrapped(function, functools.partial(trace, label, attributes, links))


def compute_decorated(function: Any, name: Any, elements: Any, attributes: Any) -> Any:
    """``function`` as CPU work at every call; whether that is recorded is looked up then."""
    from .. import compute_block

    return wrapped(function, functools.partial(compute_block, name, elements, attributes))


def wrapped(function: Any, block: Callable[[], Any]) -> Any:
    """``function`` inside ``block()`` at every call; see :func:`decorated`."""
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(wrapped(function.__func__, block))
    if isinstance(function, property):
        return function if function.fget is None else function.getter(wrapped(function.fget, block))
    if isinstance(function, type) or not callable(function):
        return function
    target = function
    while isinstance(target, functools.partial):
        target = target.func
    code = getattr(target, "__code__", None)
    if code is None:  # an object that can be called
        code = getattr(getattr(type(target), "__call__", None), "__code__", None)  # noqa: B004
    flags = getattr(code, "co_flags", 0)
    for flag, wrap in ((_COROUTINE, _coroutine), (_ASYNC_GENERATOR, _async_generator), (_GENERATOR, _generator)):
        if flags & flag:
            return functools.wraps(function)(wrap(function, block))

    @functools.wraps(function)
    def plain(*args: Any, **kwargs: Any) -> Any:
        with block():
            return function(*args, **kwargs)

    return plain


def _coroutine(function: Callable[..., Any], block: Callable[[], Any]) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        with block():
            return await function(*args, **kwargs)

    return wrapper


def _generator(function: Callable[..., Any], block: Callable[[], Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        inner = function(*args, **kwargs)
        step, value = inner.send, None
        while True:
            try:
                with block():
                    item = step(value)
            except StopIteration as stop:
                return stop.value
            try:
                value = yield item
                step = inner.send
            except GeneratorExit:
                inner.close()
                raise
            except BaseException as error:  # noqa: BLE001 - handed to the generator, as a plain call would
                step, value = inner.throw, error

    return wrapper


def _async_generator(function: Callable[..., Any], block: Callable[[], Any]) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        inner = function(*args, **kwargs)
        step, value = inner.asend, None
        while True:
            try:
                with block():
                    item = await step(value)
            except StopAsyncIteration:
                return
            try:
                value = yield item
                step = inner.asend
            except GeneratorExit:
                await inner.aclose()
                raise
            except BaseException as error:  # noqa: BLE001 - handed to the generator, as a plain call would
                step, value = inner.athrow, error

    return wrapper
