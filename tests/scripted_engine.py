"""What a hub drives in place of CUPTI and the mailbox."""

from collections import deque

from gpusense._runtime.errors import BackendError

KERNELS, COPIES, SYNCS, MEMSETS = 10, 1, 38, 2


class Engine:
    """Remembers what it was asked; ``full`` are buffers that wait to be taken."""

    def __init__(self):
        self.calls, self.full, self.given, self.refuse = [], deque(), [], {}
        self.used = 0
        self.in_flush = None

    def _call(self, name, *arguments):
        self.calls.append((name, *arguments))
        code = self.refuse.get((name, *arguments)) or self.refuse.get(name)
        if code:
            raise BackendError(name, code, "refused")

    def register(self):
        self._call("register")

    def enable(self, kind):
        self._call("enable", kind)

    def disable(self, kind):
        self._call("disable", kind)

    def flush(self, forced):
        self._call("flush", forced)
        if self.in_flush:
            self.in_flush()

    def take(self):
        return self.full.popleft() if self.full else None

    def give(self, address):
        self.given.append(address)

    def discard(self, address):
        self._call("discard", address)

    def in_use(self):
        return self.used

    def status(self, ask):
        if ask:
            self._call("dropped")
        return {"callbacks": "test", "buffer_count": 8, "buffer_size": 4096}

    def named(self, *names):
        return [call for call in self.calls if call[0] in names]
