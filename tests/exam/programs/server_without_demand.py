"""An inference server whose requests come now and then: most of the time there is nothing to do."""

import queue
import random
import threading
import time

import torch
import truth
from torch import nn

WIDTH, ROWS, REQUESTS, PAUSE_S = truth.scaled(4096), truth.scaled(8192), truth.limited(120), 0.05

layers = (layer for _ in range(12) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU()))
model = nn.Sequential(*layers).to("cuda", torch.bfloat16)
images = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
requests: queue.Queue[float | None] = queue.Queue()


def clients() -> None:
    """Requests at random times, independent of one another."""
    chance = random.Random(7)
    for _ in range(REQUESTS):
        time.sleep(chance.expovariate(1 / PAUSE_S))
        requests.put(time.perf_counter())
    requests.put(None)


with torch.inference_mode():
    for _ in range(5):
        model(images).mean(dim=0).cpu()
    served_s: list[float] = []
    steady = truth.Steady(requests=REQUESTS, mean_pause_s=PAUSE_S, served_s=served_s)
    steady.begin()
    threading.Thread(target=clients, daemon=True).start()
    while requests.get() is not None:
        began = time.perf_counter()
        answer = model(images).mean(dim=0).cpu()
        served_s.append(time.perf_counter() - began)
        steady.mark()
    steady.end()
