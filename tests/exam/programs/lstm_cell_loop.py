"""Training of an LSTM written as a loop over time steps, one cell at a time."""

import torch
import truth
from torch import nn

HIDDEN, BATCH, LENGTH = truth.scaled(256), 32, 28

cell = nn.LSTMCell(HIDDEN, HIDDEN).to("cuda")
whole = nn.LSTM(HIDDEN, HIDDEN).to("cuda")
head = nn.Linear(HIDDEN, 1).to("cuda")
used = whole if truth.FIXED else cell
optimizer = torch.optim.Adam([*used.parameters(), *head.parameters()], fused=True)
series = torch.randn(LENGTH, BATCH, HIDDEN, device="cuda")
wanted = torch.randn(LENGTH, BATCH, 1, device="cuda")

for _ in truth.Steady(cells_per_step=LENGTH).steps(5, 35):
    if truth.FIXED:
        states = whole(series)[0]
    else:
        state = torch.zeros(BATCH, HIDDEN, device="cuda"), torch.zeros(BATCH, HIDDEN, device="cuda")
        outputs = []
        for values in series:
            state = cell(values, state)
            outputs.append(state[0])
        states = torch.stack(outputs)
    loss = nn.functional.mse_loss(head(states), wanted)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
