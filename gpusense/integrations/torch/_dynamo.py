"""What dynamo, torch's compiler of Python, is told about gpusense: our files are not for it.

Dynamo looks at each function that is called while compiled code runs, and follows the calls of what it compiles.
Functions of ours are compiled by neither way: their frames run as they are, and a call of a wrapper is followed into
what it wraps. So a graph is the same with and without us. We do not import dynamo; the program does when it needs it.
"""

import sys
from collections.abc import Callable
from typing import Any

from ..._runtime import import_hook, log, package
from .._hosts import Patches

_MODULES, _RULES = "torch._dynamo.variables.nn_module", "torch._dynamo.trace_rules"
#: Dynamo goes straight to ``forward`` where a module's __call__ is this one, which it saw when it was imported.
_UNPATCHED = "unpatched_nn_module_call"


def wrap(patches: Patches, owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> Any:
    """As :meth:`Patches.wrap`, for a function that compiled code may call."""
    wrapper = patches.wrap(owner, name, make)
    if wrapper is not None:
        wrapper._torchdynamo_inline = wrapper.__wrapped__
    return wrapper


class Dynamo:
    """Dynamo as one instrumentation leaves it."""

    def __init__(self) -> None:
        self._finder: Any = None

    def install(self, patches: Patches, call: Any) -> None:
        """``call`` wraps ``nn.Module.__call__``."""
        self._call = call
        modules = sys.modules.get(_MODULES)
        if getattr(modules, _UNPATCHED, None) is call.__wrapped__:
            patches.put(modules, _UNPATCHED, call)
        if _RULES in sys.modules:
            _skip_our_files()
        else:
            self._finder = import_hook.watch(_RULES, _skip_our_files)

    def uninstall(self, patches: Patches) -> None:
        """Also for a dynamo that was imported in between: it took our wrapper for torch's own."""
        if self._finder is not None:
            self._finder.remove()
        modules = sys.modules.get(_MODULES)
        if modules is not None:
            patches.undo_too(modules, _UNPATCHED, self._call, self._call.__wrapped__)


def _skip_our_files() -> None:
    try:
        rules: Any = sys.modules[_RULES]
        rules.add(package.NAME)
    except Exception:  # noqa: BLE001 - a torch that has no such function; its compiled code may get a graph break more
        log.exception("torch dynamo", "torch.compile could not be told to leave gpusense's own code out")
