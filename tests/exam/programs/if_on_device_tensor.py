"""Conjugate gradients whose two tests of convergence read a tensor on the device in every iteration."""

import torch
import truth

SIZE, ITERATIONS = truth.scaled(12288), 36

half = torch.randn(SIZE, SIZE, device="cuda") / SIZE**0.5
matrix = half @ half.T + 0.01 * torch.eye(SIZE, device="cuda")
del half
right = torch.randn(SIZE, device="cuda")


def solve() -> torch.Tensor:
    answer = torch.zeros_like(right)
    residual = right.clone()
    direction = residual.clone()
    old = residual.dot(residual)
    for _ in range(ITERATIONS):
        image = matrix @ direction
        curvature = direction.dot(image)
        if not truth.FIXED and curvature <= 0:
            break
        length = old / curvature
        answer.addcmul_(direction, length)
        residual.addcmul_(image, length, value=-1)
        new = residual.dot(residual)
        if not truth.FIXED and new < 1e-30:
            break
        direction.mul_(new / old).add_(residual)
        old = new
    return answer


for _ in truth.Steady(waits_per_step=2 * ITERATIONS).steps(3, 30):
    solve()
