"""Sources that a recorder asks, some of which can do little or raise."""

import pytest
from support.sessions import H100

from gpusense._capture.sources import Sources
from gpusense._records.records import Unavailable

OTHER = H100._replace(uuid="GPU-00000001-0000-0000-0000-000000000000", pci_bus_id="0000:01:00.0")


class Plain:
    name = "plain"

    def flush(self, timeout_s):
        return timeout_s > 1

    def status(self):
        return {"timed": 3}


class Full(Plain):
    name = "full"
    cpu_ns = 5

    def end(self, timeout_s):
        return True

    def waits(self, longer_ns):
        return [f"longer than {longer_ns}"]

    def last(self):
        return ["of old"]

    def used_devices(self):
        return [H100, OTHER]


def test_each_is_asked_for_what_it_can_do():
    sources = Sources(lambda: False)
    for source in (Plain(), Full()):
        sources.add(source)
    assert (sources.flush(2), sources.flush(1), sources.flush(1, last=True)) == (True, False, False)
    assert (sources.waits(5), sources.last()) == (["longer than 5"], ["of old"])
    assert sources.devices_beside([H100]) == [OTHER]
    sources.absent["nccl"] = Unavailable("nccl", "it is not there", "install it")
    absent = {"nccl": {"reason": "it is not there", "hint": "install it"}}
    assert sources.why_absent() == absent
    assert sources.status() == {**absent, "plain": {"timed": 3}, "full": {"timed": 3}}
    assert sources.cpu_ns() == {"full_cpu_ns": 5}
    sources.forget()
    assert list(sources) == []


def test_one_that_raises_is_out_and_the_others_are_asked():
    class Bad(Plain):
        def flush(self, timeout_s):
            raise self.error

    own = [True]
    sources = Sources(lambda: own[0])
    bad, good = Bad(), Full()
    for error, is_out in ((ValueError(), True), (KeyboardInterrupt(), True), (KeyboardInterrupt(), False)):
        own[0] = is_out  # elsewhere Ctrl-C is the program's
        bad.error = error
        sources.add(bad)
        sources.add(good)
        if is_out:
            assert sources.flush(2)
        else:
            with pytest.raises(KeyboardInterrupt):
                sources.flush(2)
        assert (bad in sources) is not is_out
        sources.forget()


@pytest.mark.parametrize("method", ["status", "used_devices"])
def test_one_that_cannot_say_what_it_is_does_not_keep_the_others_from_it(method):
    bad, sources = Full(), Sources(lambda: False)
    setattr(bad, method, lambda: [][0])
    sources.add(bad)
    sources.add(Plain())
    assert sources.devices_beside([H100]) == ([OTHER] if method == "status" else [])
    assert sources.status() == {"plain": {"timed": 3}}
    assert bad not in sources
