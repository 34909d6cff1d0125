"""First contact with wgpu-native and the Vulkan drivers, in a child process with a time limit.

A panic of wgpu-native or a crash of a driver ends the child; the parent turns that into a reason. The child prints
one line of JSON. Run as ``main(library path, "adapters" or "selftest")``.
"""

import json
import subprocess
import sys
from typing import Any

from ..._records.records import Unavailable
from ..._runtime import child

TIMEOUT_S = 20.0
_HANGS = "a driver hangs; vulkaninfo shows which"


def ask(library: str, task: str, timeout_s: float = TIMEOUT_S) -> dict[str, Any] | Unavailable:
    """The child's answer, or why there is none."""
    if not child.can_run():
        where = sys.executable or "nothing"
        return Unavailable("wgpu", f"there is no Python to test wgpu with: this process runs in {where}")
    try:
        done = child.run(__name__, library, task, timeout_s=timeout_s)
    except subprocess.TimeoutExpired:
        return Unavailable("wgpu", f"the test process for wgpu got no answer in {timeout_s:g} s", _HANGS)
    except OSError as error:
        return Unavailable("wgpu", f"no test process for wgpu could be started: {error}")
    return _answer(done.returncode, done.stdout, done.stderr)


def main(library: str, task: str) -> int:
    """What the child does: prints ``{"adapters": …, "cards": …}`` or ``{"error": …}``."""
    import ctypes

    from ..._capi.wgpu import open_api
    from . import vulkan
    from .native import Client, SelfTestFailed, preferred

    api = open_api(ctypes.CDLL(library), library)
    if isinstance(api, Unavailable):
        return _print({"error": api.reason})
    try:
        client = Client(api)
        adapters = client.adapters()
        answer: dict[str, Any] = {"adapters": adapters}
        if task == "selftest":
            chosen = next(preferred(adapters), None)
            if chosen is None:
                return _print({"error": "no adapter has timestamp queries"})
            answer["selftest"] = {"adapter": chosen["name"], "backend": chosen["backend"]}
            answer["selftest"].update(client.self_test(chosen["handle"]))
        client.close()
    except SelfTestFailed as error:
        return _print({"error": str(error)})
    cards = vulkan.cards()
    if isinstance(cards, Unavailable):
        answer["cards"], answer["cards_reason"] = [], str(cards)
    else:
        answer["cards"] = [card._asdict() | {"heaps": [heap._asdict() for heap in card.heaps]} for card in cards]
    return _print(answer)


def _print(answer: dict[str, Any]) -> int:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    return 0


def _answer(code: int, out: bytes, err: bytes) -> dict[str, Any] | Unavailable:
    lines = [line for line in out.decode("utf-8", "replace").splitlines() if line.startswith("{")]
    if code == 0 and lines:
        try:
            answer: dict[str, Any] = json.loads(lines[-1])
        except ValueError:
            return Unavailable("wgpu", "the child's answer is not JSON")
        error = answer.get("error")
        return Unavailable("wgpu", error) if error else answer
    ended = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    said = [line for line in err.decode("utf-8", "replace").splitlines() if line.strip()]
    # A panic's first line says what and where; the last line of a Python traceback does.
    word = next((line for line in said if "panicked at" in line), said[-1] if said else "it said nothing")
    return Unavailable("wgpu", f"the test process for wgpu {ended}: {word}")
