"""An inference server, busy most of the time; one request in forty is huge, and the others queue up behind it."""

import queue
import threading
import time

import torch
import truth
from torch import nn

WIDTH, ROWS, REQUESTS, EVERY = truth.scaled(4096), truth.scaled(8192), truth.limited(320), 40
PAUSE_S = 0.010

layers = (layer for _ in range(12) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU()))
model = nn.Sequential(*layers).to("cuda", torch.bfloat16)
ordinary = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
huge = torch.randn(16 * ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
requests: queue.Queue[tuple[int, float] | None] = queue.Queue()


def clients() -> None:
    """A request every ten milliseconds."""
    due = time.perf_counter()
    for number in range(REQUESTS):
        due += PAUSE_S
        time.sleep(max(0.0, due - time.perf_counter()))
        requests.put((number, due))
    requests.put(None)


with torch.inference_mode():
    for images in (huge, *(ordinary,) * 5):
        model(images).mean(dim=0).cpu()
    latency_s: list[float] = []
    steady = truth.Steady(requests=REQUESTS, pause_s=PAUSE_S, huge_every=EVERY, latency_s=latency_s)
    steady.begin()
    threading.Thread(target=clients, daemon=True).start()
    while (request := requests.get()) is not None:
        number, due = request
        images = huge if number % EVERY == EVERY - 1 and not truth.FIXED else ordinary
        answer = model(images).mean(dim=0).cpu()
        latency_s.append(time.perf_counter() - due)
        steady.mark()
    steady.end()
