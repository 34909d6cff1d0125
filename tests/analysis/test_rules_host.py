"""What is said of a device that waits: as somebody says it who knows the program."""

import random

import pytest
from support.sessions import H100, MS, T0, US, alloc, block, compute, copy, kernel, session, sync
from support.simulated import PROGRAMS

from gpusense.analysis import findings as _findings
from gpusense.analysis.facts import Finding
from gpusense.analysis.findings import findings, verdict
from gpusense.session import Session, merge


def of_kind(run, kind):
    return [one for one in findings(run) if one.kind == kind]


class Loop:
    """Work of a program, one piece after the other."""

    def __init__(self):
        self.records, self.at, self.order = [], 0, 0

    def kernels(self, number, length, gap, name="k"):
        for place in range(number):
            self.at += gap
            self.order += 1
            self.records.append(
                kernel(f"{name}_{place}", self.at, self.at + length, correlation_id=self.order)
            )  # fmt: skip
            self.at += length

    def copy(self, direction, size=4, length=2 * US, gap=0, **fields):
        self.at += gap
        self.order += 1
        self.records.append(copy(direction, size, self.at, self.at + length, correlation_id=self.order, **fields))
        self.at += length

    def session(self, **fields):
        return session(*self.records, end=self.at, **fields)


def launching(steps, slow=0, stall_at=None):
    loop = Loop()
    for step in range(steps):
        loop.kernels(100, 5 * US, 15 * US)
        loop.kernels(4, 5 * US, 150 * US + slow, "slow")
        loop.at += 40 * MS if step == stall_at else 0
    return loop.session()


@pytest.mark.parametrize(("own_ns", "sure"), [(None, "high"), (0, "high"), (4 * MS, "high"), (30 * MS, "low")])
def test_what_may_be_gpusense_s_own_load_is_hardly_sure(own_ns, sure):
    run = launching(30)
    assert run.meta["end_ns"] - T0 < 120 * MS
    run.meta["overhead"] = {} if own_ns is None else {"drain_cpu_ns": own_ns, "thread_cpu_ns": 0, "thread_s": 9.9}
    (found,) = of_kind(run, "launch_bound")
    assert found.confidence == sure
    said = [line for line in found.evidence if "gpusense" in line]
    assert len(said) == (sure == "low")
    assert all(line.startswith("gpusense itself used 30.0 ms of CPU, ") for line in said)


def test_launches_that_take_long_now_and_then_are_the_same_cause():
    (found,) = [one for one in findings(launching(30, stall_at=20)) if one.share]
    assert found.kind == "launch_bound"
    assert "116 gaps of 100 µs to 1 ms, 150 µs on average." in found.evidence
    assert "Besides, in 1 of 30 steps the host was held up for 40.0 ms." in found.evidence
    assert found.title.endswith("that run 5.00 µs on average: launching them takes longer than running them.")
    assert found.saving_ns == 2_997 * 15 * US + 116 * 100 * US  # a gap counts for 100 µs at most


def test_work_of_the_host_that_is_more_than_all_launches_is_not_called_so():
    loop = Loop()
    for _ in range(30):
        loop.kernels(100, 5 * US, 10 * US)
        loop.kernels(4, 5 * US, 900 * US, "slow")
    found = verdict(loop.session())
    assert found.kind == "starved"
    assert found.step_ns == pytest.approx(3600 * US, rel=0.05)


def test_of_kernels_some_of_which_are_long_it_says_how_long_half_of_them_are():
    loop = Loop()
    for _ in range(30):
        loop.kernels(60, 5 * US, 15 * US)
        loop.kernels(2, 1 * MS, 15 * US, "gemm")
    found = verdict(loop.session())
    assert found.kind == "launch_bound"
    assert "of which half run at most 5.00 µs: launching those takes longer" in found.title


def waiting_once(steps=30):
    """The host reads a value at the end of each step, and is slower than the device until it is ahead again."""
    loop = Loop()
    for _ in range(steps):
        loop.kernels(20, 20 * US, 40 * US, "forward")
        loop.kernels(40, 300 * US, 1 * US, "backward")
        loop.copy("gpu_to_cpu", gap=1 * US)
        loop.records.append(sync(loop.at - 5 * MS, loop.at + 5 * US))
        loop.records.append(sync(loop.at - 9 * MS, loop.at - 9 * MS + 5 * US, name="event_synchronize"))
    return loop.session()


def test_one_wait_in_a_step_that_keeps_the_device_busy_is_a_price_and_no_fault():
    limit, found = findings(waiting_once())[:2]
    assert (limit.kind, found.kind) == ("device_bound", "synchronising_call")
    assert found.title.startswith("GPU 0 is busy 94 % of each step, and idle for 6")
    assert "after the host has waited for it" in found.title
    assert "If the program needs it at once, only faster" in found.fix
    assert (  # the short wait for an event is none
        "The host waited 29 times: in cudaStreamSynchronize, each after a small copy to the host (.item(), bool(), "
        ".cpu())." in found.evidence
    )


@pytest.mark.parametrize(("size", "said"), [(4, "to answer what it has read"), (1 << 24, "to prepare the next input")])
def test_what_the_host_reads_and_answers_within_a_step_is_no_loading(size, said):
    loop = Loop()
    for _ in range(20):
        loop.kernels(4, MS, 0)
        loop.copy("gpu_to_cpu")
        loop.copy("cpu_to_gpu", size, gap=15 * MS)
    found = verdict(loop.session())
    assert found.kind == "starved"
    assert said in found.title
    assert ("callback" in found.fix) == (size == 4)


def test_only_blocks_with_a_tenth_of_the_wait_are_what_the_host_was_in():
    loop = Loop()
    blocks = []
    for _ in range(20):
        loop.kernels(3, MS, 0)
        blocks += [
            compute("decode", loop.at, loop.at + 6 * MS),
            compute("log", loop.at + 6 * MS, loop.at + 6 * MS + 900 * US),
        ]
        loop.at += 10 * MS
    loop.records += blocks
    (said,) = [line for line in verdict(loop.session()).evidence if "the host spent" in line]
    assert said == "Of this time the host spent 60 % in “decode”."
    assert "log" not in said
    loop.records = [one for one in loop.records if getattr(one, "name", "") != "decode"]
    assert not [line for line in verdict(loop.session()).evidence if "the host spent" in line]


def test_of_a_wait_that_lies_here_and_there_the_largest_places_are_told():
    loop = Loop()
    for _ in range(20):
        for name, gap in (("a", 3), ("b", 4), ("c", 2), ("d", 3), ("e", 3)):
            loop.kernels(1, MS, gap * MS, name)
    said = verdict(loop.session()).evidence
    assert "Of this time 27 % between a_0 and b_0, 21 % between e_0 and a_0, 19 % between c_0 and d_0." in said


def test_the_rhythm_of_stalls_is_that_of_the_real_ones():
    draw, loop = random.Random(2), Loop()
    for step in range(120):
        loop.kernels(3, 3 * MS, 0)
        if step % 10 == 9:
            loop.at += 400 * MS
        elif step % 17 == 3:
            loop.at += draw.randrange(2 * MS, 9 * MS)  # late for some other reason
    (found,) = [one for one in findings(loop.session()) if one.share]
    assert found.kind == "periodic_stall"
    assert found.title.startswith("Every 10 steps GPU 0 is idle for 400 ms longer than usual")
    assert "12 steps are so slow" in found.evidence[1] or "11 steps are so slow" in found.evidence[1]


def test_what_is_compiled_in_two_steps_alone_is_no_price_of_each_step():
    def compiling(*steps):
        loop = Loop()
        for step in range(40):
            loop.kernels(400, 5 * US, 10 * US)
            for number in range(2 * (step in steps)):
                loop.at += 20 * MS
                loop.kernels(1, 5 * US, 0, f"new_{step}_{number}")
        return [one for one in findings(loop.session()) if one.share]

    launch, once = compiling(20, 30)
    assert (launch.kind, once.kind) == ("launch_bound", "interruption")
    assert once.title.startswith("GPU 0 is idle for 40.0 ms in 2 of 40 steps, each time before a kernel or a size")
    assert "recompilation" in [one.kind for one in compiling(20, 30, 35)]


def test_of_two_long_pauses_among_many_it_says_so_and_calls_neither_an_input():
    draw, loop = random.Random(4), Loop()
    for number in range(80):
        loop.kernels(1, 50 * US, draw.randrange(300, 2000) * US, f"kernel_{number}")
        if number in (30, 60):
            loop.copy("cpu_to_gpu", gap=3000 * MS)
    readings = [(T0 + at, 2 * at) for at in range(0, loop.at + MS, 10 * MS)]
    found = verdict(loop.session(cpu_time=readings))
    assert found.title.endswith(", waiting for the host: 6.00 s of that in 2 pauses.")
    assert "The process computed then, on 2.0 cores on average." in found.evidence
    assert found.where == "between kernel_30_0 and a copy to the device"
    assert found.fix.startswith("Ask a profiler of Python")


@pytest.mark.parametrize(
    ("slow", "kinds"),
    [((13,), ["interruption"]), ((2, 3), []), ((2, 13), ["periodic_stall"]), ((13, 14), ["periodic_stall"])],
)
def test_slow_steps_among_the_first_alone_are_its_warm_up(slow, kinds):
    loop = Loop()
    for step in range(30):
        loop.kernels(3, 3 * MS, 0)
        loop.at += 60 * MS if step in slow else 0
    assert [one.kind for one in findings(loop.session()) if one.share] == kinds


def loading(waits, workers=4, steps=100, epoch=1000, name="DataLoader", loader="DataLoader"):
    """Training that waits before some steps, in a block: ``waits`` gives milliseconds by the step's number."""
    loop, blocks = Loop(), []
    for step in range(steps):
        loop.kernels(3, 3 * MS, 0)
        start, known = loop.at, {"torch.loader.workers": workers, "torch.loader.batch": step % epoch}
        loop.at += waits(step) * MS
        blocks += [
            block([loader], start, loop.at if name == "DataLoader" else start + US, attributes=known),
            *([block([name], start + US, loop.at)] if name not in ("", "DataLoader") else []),
        ]
        loop.copy("cpu_to_gpu", 1 << 24, MS)
    loop.records += blocks
    return verdict(loop.session())


def test_of_a_loader_that_cannot_keep_up_it_says_so_and_how_many_workers_there_are():
    found = loading(lambda step: 60 * (step % 4 == 3))
    assert found.kind == "starved"
    assert found.where == "DataLoader"
    assert found.title.startswith(
        "The DataLoader's 4 workers cannot keep up: every 4 steps GPU 0 is idle for 60.0 ms longer than usual, 60 %"
    )
    assert "Of this time the host spent 100 % in “DataLoader”." in found.evidence
    assert any("There are as many workers" in line for line in found.evidence)
    assert found.fix.startswith("Use more workers")
    now_and_then = loading(lambda step: 200 * (step in (11, 30, 37, 61, 88)))
    assert now_and_then.title.startswith("The DataLoader's 4 workers cannot keep up: in 5 of ")
    assert not any("as many workers" in line for line in now_and_then.evidence)
    every_step = loading(lambda step: 20, workers=0)
    assert every_step.kind == "starved"
    assert "The DataLoader has no workers, so the main thread makes each batch." in every_step.evidence
    assert every_step.fix.startswith("Use workers (DataLoader's num_workers)")


def test_a_range_of_torch_s_own_profiler_is_a_loader_too():
    found = loading(lambda step: 60 * (step % 4 == 3), loader="enumerate(DataLoader)#_MultiProcessingDataLoaderIter")
    assert (found.kind, found.where) == ("starved", "DataLoader")


def test_a_loader_that_begins_anew_with_each_epoch_is_to_keep_its_workers():
    found = loading(lambda step: 400 * (step % 20 == 0), epoch=20)
    assert found.title.startswith(
        "The first batch of an epoch takes the DataLoader a long time: every 20 steps GPU 0 is idle"
    )
    assert "persistent_workers=True" in found.fix


@pytest.mark.parametrize("name", ["save", ""])
def test_what_happens_as_often_as_there_are_workers_need_not_be_theirs(name):
    found = loading(lambda step: 60 * (step % 4 == 3), name=name)
    assert found.kind == "periodic_stall"
    inside = f" in “{name}”" * bool(name)
    assert found.title.startswith(f"Every 4 steps GPU 0 is idle for 60.0 ms longer than usual{inside}, ")
    assert "saving" in found.fix
    assert not any("orkers" in text for text in (found.title, *found.evidence))
    assert ("Of this time the host spent 100 % in “save”." in found.evidence) == bool(name)


def saving(every, steps, last=True):
    """Training that writes its state from pageable memory after some steps."""
    loop = Loop()
    for step in range(steps):
        loop.kernels(3, 3 * MS, 0)
        if step % every == every - 1 and (last or step + 1 < steps):
            for _ in range(8):
                loop.copy("gpu_to_cpu", 10_000_000, 10 * MS, gap=MS, source="device", destination="pageable")
            loop.at += 100 * MS
    return loop


def test_a_stall_explains_its_copies():
    loop = saving(20, 100)
    found = [one.kind for one in findings(loop.session()) if one.share]
    assert found == ["periodic_stall"]


def test_what_happens_once_is_said_after_what_holds_in_each_step():
    loop = Loop()
    for step in range(60):
        loop.kernels(100, 5 * US, 10 * US)
        if step == 30:
            for number in range(40):  # as an evaluation and a checkpoint are
                loop.order += 1
                loop.records.append(copy("gpu_to_cpu", 1 << 20, loop.at, loop.at + MS, correlation_id=loop.order))
                loop.at += (1 if number < 39 else 5) * MS
    kinds = [one.kind for one in findings(loop.session()) if one.share]
    assert kinds == ["launch_bound", "interruption"]
    (once,) = of_kind(loop.session(), "interruption")
    assert once.title.startswith("Once the loop stops for ")


@pytest.mark.parametrize(
    ("name", "size", "cores", "said", "busy"),
    [
        ("backend_compile_and_load", 4, 1.0, "let the compiler keep", "The process computed then, on 1.0 cores"),
        ("save", 1 << 20, 0.05, "If it saves or logs", "The process itself waited then: it computed for 5.0 %"),
        ("solve", 4, 15.8, "Look at what the host does", "The process computed then, on 15.8 cores on average."),
    ],
)
def test_what_stops_the_loop_is_called_saving_only_where_data_was_copied_back(name, size, cores, said, busy):
    loop, blocks = Loop(), []
    for step in range(60):
        loop.kernels(100, 50 * US, 1 * US)
        if step in (15, 30, 45):
            for _ in range(40):
                loop.copy("gpu_to_cpu", size, 20 * US, MS)
            blocks.append(block([name], loop.at - 40 * MS, loop.at + 500 * MS))
            loop.at += 500 * MS
    loop.records += blocks
    readings = [(T0 + at, round(cores * at)) for at in range(0, loop.at + MS, 10 * MS)]
    found = verdict(loop.session(cpu_time=readings))
    assert found.title.startswith("Every 15 steps the loop stops for ")
    assert any(line.startswith(busy) for line in found.evidence)
    assert any(f"in “{name}”" in line for line in found.evidence)
    assert said in found.fix


@pytest.mark.parametrize(("steps", "places"), [(30, 1), (4, 3)])
def test_what_sleeps_at_one_place_or_seldom_waits_for_no_other_thread(steps, places):
    loop = Loop()
    for _ in range(steps):
        for place in range(3):
            loop.kernels(1, MS, 4 * MS if place < places else 0, f"part_{place}")
    found = verdict(loop.session())
    assert found.kind == "starved"
    assert "GIL" not in found.title


def test_devices_that_wait_for_the_host_by_turns_take_none():
    records = []
    for step in range(40):
        for device in (0, 1):
            start = step * 40 * MS + device * 20 * MS
            records += [
                kernel(f"{name}_{device}", start + at * 4 * MS, start + at * 4 * MS + 4 * MS, device=device,
                       correlation_id=step * 4 + device * 2 + at + 1)
                for at, name in enumerate("ab")
            ]  # fmt: skip
    cards = tuple(H100._replace(index=at, cuda_index=at, uuid=f"GPU-{at}") for at in (0, 1))
    kinds = [one.kind for one in findings(session(*records, end=1_600 * MS, devices=cards))]
    assert "devices_take_turns" not in kinds
    assert kinds[0] == "starved"


@pytest.mark.parametrize(
    ("gap", "kind"), [(10 * US, "launch_bound"), (6 * US, "device_bound"), (2 * US, "nothing_to_gain")]
)
def test_a_device_that_is_hardly_idle_is_what_limits_the_program(gap, kind):
    loop = Loop()
    for _ in range(200):
        loop.kernels(1, 80 * US, gap, "nvjet_hsh")
        loop.kernels(1, 60 * US, gap, "vectorized_elementwise_kernel<Gelu>")
        loop.kernels(1, 40 * US, gap, "vectorized_layer_norm_kernel")
    found = verdict(loop.session())
    assert found.kind == kind
    if kind == "device_bound":
        assert found.title.endswith("with matmul 40 %, elementwise 30 %, normalisation 20 %.")
        assert found.fix.startswith("Fuse what mostly moves data, 51 % of each step: torch.compile")


def test_two_long_pauses_are_no_verdict_where_the_program_has_steps_or_a_loader():
    loop = Loop()
    for step in range(42):
        for name, slow in (("a", 11), ("b", 30)):
            loop.kernels(1, 3 * MS, 0, name)
            loop.at += (250 if step == slow else 5) * MS
    assert "pauses" not in verdict(loop.session()).title
    draw, loop = random.Random(4), Loop()
    for number in range(80):
        if number in (30, 60):
            loop.records.append(block(["DataLoader"], loop.at, loop.at + 3000 * MS))
            loop.at += 3000 * MS
        loop.kernels(1, 50 * US, draw.randrange(300, 2000) * US, f"kernel_{number}")
    assert "The DataLoader cannot keep up." in verdict(loop.session()).evidence


def test_a_link_with_all_its_lanes_is_not_spoken_of():
    found = verdict(PROGRAMS["weights_come_from_the_host"]().session())
    assert not any("lanes" in line for line in found.evidence)


@pytest.mark.parametrize(
    ("kind", "share", "beside"),
    [
        ("startup", 0.98, 0.9),  # all of the run
        ("interruption", 0.3, 0.06),
        ("interruption", 0.6, 0.5),
    ],
)
def test_what_happens_once_comes_first_where_it_is_much(kind, share, beside, monkeypatch):
    def order(share):
        made = [Finding(kind, "a", (), "", "high", share=share), Finding("starved", "b", (), "", "high", share=beside)]
        monkeypatch.setattr(_findings, "_RULES", [lambda facts: made])
        return [one.kind for one in findings(Session())]

    assert order(share) == [kind, "starved"]
    assert order(share / 2) == ["starved", kind]


def test_another_process_explains_no_more_than_twice_what_it_costs_and_no_loader(monkeypatch):
    def found(share, where=""):
        costs = {"confidence": "high", "evidence": (), "fix": ""}
        made = [
            Finding("shared_device", "a", share=0.2, **costs),
            Finding("starved", "b", share=share, where=where, **costs),
        ]
        monkeypatch.setattr(_findings, "_RULES", [lambda facts: made])
        return [one.kind for one in findings(Session())]

    assert found(0.3) == ["shared_device"]
    assert found(0.5) == ["starved", "shared_device"]
    assert found(0.3, "in “DataLoader”") == ["starved", "shared_device"]


def requests(long_every=None):
    draw, loop = random.Random(5), Loop()
    for number in range(160):
        loop.at += round(draw.expovariate(1) * 5 * MS)
        times = 16 if long_every and number % long_every == long_every - 1 else 1
        for name in "abcd":
            loop.order += 1
            loop.records.append(kernel(name, loop.at, loop.at + times * MS, correlation_id=loop.order))
            loop.at += times * MS
    return loop.session()


def test_a_server_s_long_requests_are_told_apart_from_waiting_for_demand():
    found = verdict(requests(long_every=40))
    assert found.kind == "long_requests"
    assert (
        found.title == "4 of 155 requests take 16 times as long as the rest (64.0 ms each), and those behind them wait."
    )
    assert "One in 40 is so long." in found.evidence
    assert verdict(requests()).kind == "no_demand"


def allocating(memory):
    loop = Loop()
    for _ in range(30):
        loop.kernels(4, MS, 0)
        for number, name in enumerate(("alloc", "alloc", "free")):
            loop.records.append(alloc(1 << 20, loop.at + number * US, 7, name=name, memory=memory))
        loop.at += 900 * US
    return loop.session()


def test_calls_that_allocate_are_named_as_they_are_called():
    found = verdict(allocating("device"))
    assert found.kind == "allocations"
    assert "around 2 calls of cudaMalloc and 1 calls of cudaFree a step" in found.title
    assert "cudaHostAlloc and 1 calls of cudaFreeHost" in verdict(allocating("pinned")).title
    assert verdict(allocating("device_static")).kind != "allocations"  # variables of a module that is loaded


def test_nothing_to_gain_is_said_of_a_busy_device_alone():
    busy = Loop()
    busy.kernels(50, MS, 20 * US)
    assert "no fault was found: only faster" in verdict(busy.session()).title
    assert "larger batch" not in verdict(busy.session()).fix  # kernels of 1 ms fill the device as they are
    small = Loop()
    small.kernels(50, 60 * US, 1 * US)
    assert "larger batch" in verdict(small.session()).fix
    idle = Loop()
    for _ in range(30):
        idle.kernels(10, 400 * US, 19 * US)
        idle.at += 180 * US
    found = verdict(idle.session())
    assert found.kind == "nothing_to_gain"
    assert (
        "no single fault was found. The rest is idle: 4.4 % waiting for the host, 3.9 % launch overhead." in found.title
    )
    short = session(kernel("k", 0, MS), end=1000 * MS)
    assert "but that is 1.00 ms of the 1.00 s that the program runs" in verdict(short).title


def rank(number, prepares):
    loop = Loop()
    card = H100._replace(uuid=f"GPU-{number}", pci_bus_id=f"0000:0{number}:00.0", cuda_index=number, nvml_index=number)
    for _ in range(20):
        start = loop.at
        loop.at += prepares
        loop.kernels(4, MS, 0)
        loop.order += 1
        end = start + 36 * MS
        loop.records.append(kernel("ncclDevKernel_AllReduce", loop.at, end, correlation_id=loop.order))
        loop.at = end
    return session(*loop.records, end=loop.at, rank=number, world_size=2, devices=(card,))


def test_of_a_late_rank_it_says_which_how_much_and_where_to_look():
    found = verdict(merge([rank(0, MS), rank(1, 30 * MS)]))
    assert found.kind == "late_rank"
    assert found.where == "rank 1"
    assert found.title.startswith("Rank 1 arrives last in 100 % of 20 collectives")
    assert (
        "for 83 % of each step (28.4 ms of 34.4 ms on average) between ncclDevKernel_AllReduce and k_0"
        in found.evidence[0]
    )
    assert found.fix.startswith("Look at what the host of rank 1 does there")


def test_ranks_that_wait_for_each_other_alike_are_one_finding():
    found = of_kind(merge([rank(0, MS), rank(1, MS)]), "exposed_collectives")
    assert len(found) == 1
    assert found[0].evidence[-1] == "The same on 1 other device or rank: 86 %."


def pausing(number, steps, pauses):
    """A rank whose loop stops at these steps, so many milliseconds each."""
    loop = Loop()
    for step in range(steps):
        loop.kernels(100, 50 * US, 1 * US)
        if step in pauses:
            for _ in range(40):
                loop.copy("gpu_to_cpu", 1 << 20, 20 * US, MS)
            loop.at += pauses[step] * MS
    card = H100._replace(uuid=f"GPU-{number}", pci_bus_id=f"0000:0{number}:00.0", cuda_index=number, nvml_index=number)
    return session(*loop.records, end=loop.at, rank=number, world_size=2, devices=(card,))


def test_a_loop_that_stops_on_two_ranks_is_one_finding_that_names_the_rank():
    runs = [pausing(0, 60, {30: 1500}), pausing(1, 60, {14: 400, 29: 400, 44: 400})]
    found = [one for one in findings(merge(runs)) if one.kind in ("interruption", "periodic_stall")]
    assert len(found) == 1
    assert found[0].title.startswith("Rank 0 · GPU 0: Once the loop stops for ")
    assert found[0].evidence[-1].startswith("The same on 1 other device or rank: ")
    alone = [of_kind(run, kind)[0] for run, kind in zip(runs, ("interruption", "periodic_stall"), strict=True)]
    assert [one.title.partition(" stops ")[0] for one in alone] == ["Once the loop", "Every 15 steps the loop"]


def test_a_finding_of_a_merged_session_names_its_rank_in_place_of_the_device_alone():
    (found,) = of_kind(merge([rank(0, MS), rank(1, MS)]), "exposed_collectives")
    assert found.title.startswith(f"{found.device.capitalize().replace('gpu', 'GPU')} only communicates for ")
    assert found.device in ("rank 0 · GPU 0", "rank 1 · GPU 1")


def test_unusual_calls_of_a_merged_session_are_told_with_their_rank():
    def one(number):
        run = rank(number, MS)
        at = run.meta["end_ns"] - T0
        run.records += [kernel("odd", at + i * MS, at + i * MS + 100 * US) for i in range(20)]
        run.records.append(kernel("odd", at + 30 * MS, at + 230 * MS))
        run.meta["end_ns"] += 230 * MS
        return run

    (alone,), (both,) = (of_kind(run, "anomalies") for run in (one(1), merge([one(0), one(1)])))
    assert alone.evidence[0].startswith("odd: 200 ms where ")
    assert sorted(line[:14] for line in both.evidence) == ["rank 0 · odd: ", "rank 1 · odd: "]
