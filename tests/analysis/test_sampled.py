"""Whose samples are whose: cards are joined by what they are, in every report, however CUDA and NVML number them."""

import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sessions import H100, MS, block, copy, kernel, sample, session

from gpusense._records.metrics import Pcie, ProcessUsage
from gpusense._records.records import DeviceInfo
from gpusense.analysis.conditions import conditions
from gpusense.analysis.energy import energy
from gpusense.analysis.facts import Facts
from gpusense.analysis.findings import findings
from gpusense.analysis.sampled import concerned, devices_seen, sampled
from gpusense.analysis.transfers import pcie_bytes_per_s, transfers
from gpusense.report import chrome, text
from gpusense.report.html.data import page_data
from gpusense.report.json import to_dict
from gpusense.report.perfetto import packets
from gpusense.report.series import device_series
from gpusense.report.style import PLAIN
from gpusense.session import Session, merge

SECOND = 1000 * MS
WIDE = PLAIN._replace(width=240)

#: What a machine has, in NVML's order: each card has figures of its own.
CARDS = tuple(
    H100._replace(
        index=place,
        nvml_index=place,
        cuda_index=None,
        backend="nvml",
        uuid=f"GPU-{place:08x}-1111-2222-3333-444444444444",
        pci_bus_id=f"0000:{0x1B + place:02x}:00.0",
    )
    for place in range(4)
)


def watts(card: DeviceInfo) -> int:
    return 100 * (1 + CARDS.index(card))


def cuda(shown: "tuple[DeviceInfo, ...]", **changes) -> tuple[DeviceInfo, ...]:
    """CUDA's own list: what CUDA_VISIBLE_DEVICES leaves, in its order."""
    return tuple(
        one._replace(index=at, cuda_index=at, nvml_index=None, backend="cuda", **changes)
        for at, one in enumerate(shown)
    )


def watched(numbers: "tuple[int, ...]" = (0, 1, 2, 3), shown=(), cards=CARDS) -> list:
    """Samples of all cards for a second, which NVML numbers so; CUDA became live in the middle."""
    rows = []
    for at in range(0, 1001, 100):
        for card, number in zip(cards, numbers, strict=True):
            seen = card._replace(index=number, nvml_index=number)
            if at >= 500 and shown:
                behind = [one for one in cards if one not in shown]
                ordinal = shown.index(card) if card in shown else None
                place = ordinal if ordinal is not None else len(shown) + behind.index(card)
                seen = seen._replace(index=place, cuda_index=ordinal)
            place = CARDS.index(card)
            rows.append(
                sample(at * MS, device=seen, watts=watts(card), used=watts(card) << 20, gpu=10.0 * (1 + place),
                       sm_mhz=1000 + 100 * place, joules=watts(card) * at / 1000,
                       pcie=Pcie(generation=1 + place, width=16), why=("thermal",) if place == 2 else ())
            )  # fmt: skip
    return rows


def program(shown, *used: int, **more) -> Session:
    """A second of work on those ordinals."""
    work = [
        one
        for at in range(0, 1000, 50)
        for device in used
        for one in (
            kernel(f"gemm{device}", (at + 5) * MS, (at + 45) * MS, device=device, path=("train",), block_id=1),
            copy(
                "cpu_to_gpu", 2 << 20, (at + 45) * MS, (at + 46) * MS, device=device, source="pinned", path=("train",)
            ),
        )
    ]
    devices = cuda(shown)
    return session(block(("train",), 0, SECOND), *work, devices=devices, end=SECOND, **more)


@pytest.mark.parametrize("order", [(1,), (1, 0), (3, 1, 2)])
def test_figures_are_of_the_card_that_cuda_calls_so(order):
    """CUDA_VISIBLE_DEVICES=3,1,2: device 0 is NVML's third card, and the others are none of the program's."""
    shown = tuple(CARDS[place] for place in order)
    run = program(shown, 0, metrics=watched(shown=shown))
    cards = sampled(run)
    assert [card.number for card in cards] == [*range(len(order)), *[None] * (4 - len(order))]
    assert [card.worked for card in cards] == [True] + [False] * 3
    assert [card.device.uuid for card in concerned(run)] == [shown[0].uuid]
    first, *others = energy(run)
    assert (first.device, first.card, round(first.joules)) == (0, "GPU 0", watts(shown[0]))
    assert [row.path for row in first.blocks] == [("train",)]
    assert all(row.blocks == () for row in others)  # the program was not on them
    hidden = [card for card in CARDS if card not in shown]
    assert [row.card for row in others[len(order) - 1 :]] == [
        f"another card: {card.name} ({card.pci_bus_id})" for card in hidden
    ]
    (copies,) = transfers(run)
    assert copies.link_bytes_per_s == pcie_bytes_per_s(1 + order[0], 16)


def test_what_another_card_did_is_no_finding():
    shown = (CARDS[1],)
    run = program(shown, 0, metrics=watched(shown=shown))
    assert not [one for one in findings(run) if one.kind in ("throttled", "memory_full")]
    on_it = program((CARDS[2],), 0, metrics=watched(shown=(CARDS[2],)))
    (held,) = [one for one in findings(on_it) if one.kind == "throttled"]
    assert held.title.startswith("GPU 0 ran at reduced clocks")
    before = program((CARDS[0],), 0, metrics=watched())
    assert conditions([before], [on_it]) == [
        "SM clock 20 % higher (1,000 → 1,200 MHz)",
        "clocks were lowered only after: thermal",
    ]


def test_the_page_and_the_traces_name_the_card():
    shown = (CARDS[1],)
    run = program(shown, 0, metrics=watched(shown=shown))
    page = page_data(run).facts
    charts = {(one["device"], one["label"]): one["v"] for one in page["series"]}
    assert charts["GPU 0", "Power"] == [200] * 11
    tiles = {tile["label"]: tile for phase in page["phases"] for tile in phase["tiles"]}
    assert tiles["Energy"]["value"] == "200 J"
    assert tiles["Peak memory"]["value"] == "210 MB"
    (table,) = [one for one in page["tables"] if one["title"] == "Energy by block"]
    assert [row[:3] for row in table["rows"]] == [("train", "GPU 0", "200 J")]
    out = io.StringIO()
    chrome.write(run, out)
    events = json.loads(out.getvalue())["traceEvents"]
    names = {one["pid"]: one["args"]["name"] for one in events if one.get("name") == "process_name"}
    power = {names[one["pid"]]: one["args"]["value"] for one in events if one["ph"] == "C" and "Power" in one["name"]}
    assert power.pop(f"GPU 0 · {H100.name}") == 200
    assert sorted(power.values()) == [100, 300, 400]
    assert all(name.startswith("another card: ") for name in power)


def test_a_mig_instance_is_on_the_card_of_its_address():
    shown = cuda((CARDS[3],), uuid="MIG-12345678-aaaa-bbbb-cccc-dddddddddddd")
    run = program((CARDS[3],), 0, metrics=watched())
    run.devices = shown
    assert [(card.number, card.worked) for card in sampled(run)] == [(0, True)] + [(None, False)] * 3
    assert round(energy(run)[0].joules) == 400
    run.meta.update(pid=1)
    other = program((CARDS[0],), 0)
    other.meta.update(pid=2)
    mine = {card.text: card.worked for card in sampled(merge([run, other]))}  # which lists the whole card as well
    assert (mine["GPU 0"], sum(map(bool, mine.values()))) == (True, 2)


def test_without_any_name_of_a_card_nothing_is_said_of_it():
    """Two cards that nobody can tell apart: named absence. One on both sides is the one."""
    nameless = [card._replace(uuid=None, pci_bus_id=None) for card in CARDS[:2]]
    rows = watched(cards=CARDS[:2], numbers=(0, 1))
    rows = [one._replace(device=nameless[one.device.index]) for one in rows]
    run = program((CARDS[1],), 0, metrics=rows)
    assert [(card.number, card.worked) for card in sampled(run)] == [(None, False)] * 2
    assert all(row.blocks == () for row in energy(run))
    alone = program((CARDS[1],), 0, metrics=rows[::2])
    assert [(card.number, card.worked, card.device.uuid) for card in sampled(alone)] == [(0, True, CARDS[1].uuid)]
    unlisted = program((), 0, metrics=rows[::2])
    assert [(card.number, card.worked) for card in sampled(unlisted)] == [(0, True)]
    other = program((CARDS[1],), 0, metrics=watched(cards=CARDS[:1], numbers=(0,)))
    assert [(card.number, card.worked) for card in sampled(other)] == [(None, False)]  # known to be two cards
    cpu = program((), 0)
    cpu.devices = (DeviceInfo(0, "llvmpipe (LLVM 15)", "unknown", "wgpu", kind="cpu"),)
    cpu.metrics = rows[::2]
    assert [(card.number, card.worked) for card in sampled(cpu)] == [(None, False)]


def test_cards_of_two_machines_may_have_one_address():
    ranks = []
    for rank, card in enumerate(CARDS[:2]):
        mine = card._replace(pci_bus_id="0000:1b:00.0")
        run = program((card,), 0, metrics=[one._replace(device=mine) for one in watched(cards=(card,), numbers=(0,))])
        run.devices = cuda((mine,))
        run.meta.update(rank=rank, pid=rank, world_size=2)
        ranks.append(run)
    whole = merge(ranks)
    assert [(row.device, round(row.joules), [one.path for one in row.blocks]) for row in energy(whole)] == [
        (0, 100, [("rank 0", "train")]),
        (1, 200, [("rank 1", "train")]),
    ]


def test_where_no_work_is_known_a_card_alone_has_the_blocks():
    one = session(block(("a",), 0, SECOND), devices=(), metrics=watched(cards=CARDS[:1], numbers=(0,)), end=SECOND)
    assert [len(row.blocks) for row in energy(one)] == [1]
    assert [(card.text, card.worked) for card in concerned(one)] == [("GPU 0", None)]
    assert [device.uuid for device in devices_seen(one)] == [CARDS[0].uuid]
    several = session(block(("a",), 0, SECOND), devices=(), metrics=watched(), end=SECOND)
    assert [(row.card, len(row.blocks)) for row in energy(several)] == [(f"GPU {place}", 0) for place in range(4)]


def test_a_neighbour_is_one_on_the_same_card():
    """By the card's own processes, not by those of the card that NVML gives the same number."""
    busy = (ProcessUsage(999, memory_used_bytes=8 << 30),)
    for place, found in ((0, []), (1, ["GPU 0"])):
        rows = [one._replace(processes=busy if one.device.uuid == CARDS[place].uuid else ()) for one in watched()]
        turns = [kernel("gemm", at * MS, (at + 10 + 20 * (at % 100 > 0)) * MS) for at in range(0, 1000, 50)]
        run = session(*turns, devices=cuda((CARDS[1],)), metrics=rows, end=SECOND)
        shared = [one.title for one in findings(run) if one.kind == "shared_device"]
        assert [title.split("works on ")[1].split(":")[0] for title in shared] == found


def _shown(run: Session) -> list[object]:
    """Every report as it is, without the numbers that NVML gives: the samples' own entries."""
    facts = to_dict(run)
    del facts["metrics"]
    out = io.StringIO()
    chrome.write(run, out)
    return [
        "\n".join(text.full(run, WIDE)),
        page_data(run).facts,
        json.dumps(facts, default=str),
        out.getvalue(),
        b"".join(packets(run)),
        list(device_series(run)),
        Facts(run).transfers,
    ]


@settings(max_examples=20)
@given(
    numbers=st.permutations(range(4)),
    order=st.permutations(range(4)),
    visible=st.integers(1, 4),
    known=st.sampled_from(["both", "uuid", "pci"]),
    data=st.data(),
)
def test_numbering_nvml_s_cards_anew_changes_no_figure(numbers, order, visible, known, data):
    shown = tuple(CARDS[place] for place in order[:visible])
    used = data.draw(st.sets(st.integers(0, visible - 1), min_size=1))
    runs = [program(shown, *sorted(used), metrics=watched(tuple(some), shown)) for some in (range(4), numbers)]
    for run in runs:
        if known == "uuid":
            run.devices = tuple(one._replace(pci_bus_id=None) for one in run.devices)
        elif known == "pci":
            run.devices = tuple(one._replace(uuid=None) for one in run.devices)
    assert _shown(runs[0]) == _shown(runs[1])
    for row in energy(runs[1]):
        if row.device is not None:
            assert round(row.joules) == watts(shown[row.device])
            assert row.worked is (row.device in used)
