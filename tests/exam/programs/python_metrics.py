"""Training that counts a confusion matrix and an F1 score in pure Python after every step."""

import torch
import truth
from torch import nn

WIDTH, BATCH, CLASSES = truth.scaled(4096), truth.scaled(8192), 16

layers = (layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU()))
model = nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES)).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
inputs = torch.randn(BATCH, WIDTH, device="cuda", dtype=torch.bfloat16)
labels = torch.randint(0, CLASSES, (BATCH,), device="cuda")
on_host = labels.tolist()
confusion = [[0] * CLASSES for _ in range(CLASSES)]
counted = torch.zeros(CLASSES * CLASSES, dtype=torch.int64, device="cuda")


def count(predicted: list[int]) -> float:
    """Adds to the confusion matrix; the F1 score over all classes."""
    scores = []
    for predicted_class, true_class in zip(predicted, on_host, strict=True):
        confusion[true_class][predicted_class] += 1
    for wanted in range(CLASSES):
        hits = sum(1 for a, b in zip(predicted, on_host, strict=True) if a == wanted and b == wanted)
        either = sum(1 for a, b in zip(predicted, on_host, strict=True) if a == wanted or b == wanted)
        scores.append(2 * hits / max(1, hits + either))
    return sum(scores) / CLASSES


for _ in truth.Steady(samples_per_step=BATCH).steps(8, 80):
    outputs = model(inputs)
    loss = nn.functional.cross_entropy(outputs.float(), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    predicted = outputs.argmax(dim=1)
    if truth.FIXED:
        counted += torch.bincount(labels * CLASSES + predicted, minlength=CLASSES * CLASSES)
    else:
        count(predicted.tolist())
