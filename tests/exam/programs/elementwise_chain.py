"""Option prices by the formula of Black and Scholes in eager mode: every operation reads and writes all options."""

import math

import torch
import truth

OPTIONS = truth.scaled(100_000_000)

spot = torch.empty(OPTIONS, device="cuda").uniform_(50, 150)
strike = torch.empty(OPTIONS, device="cuda").uniform_(50, 150)
years = torch.empty(OPTIONS, device="cuda").uniform_(0.1, 2)
volatility = torch.empty(OPTIONS, device="cuda").uniform_(0.1, 0.5)
RATE = 0.02


def normal(value: torch.Tensor) -> torch.Tensor:
    return 0.5 * (1 + torch.erf(value / math.sqrt(2)))


def call(spot: torch.Tensor, strike: torch.Tensor, years: torch.Tensor, volatility: torch.Tensor) -> torch.Tensor:
    spread = volatility * torch.sqrt(years)
    first = (torch.log(spot / strike) + (RATE + 0.5 * volatility * volatility) * years) / spread
    second = first - spread
    return spot * normal(first) - strike * torch.exp(-RATE * years) * normal(second)


price = torch.compile(call) if truth.FIXED else call
for _ in truth.Steady(bytes_needed_per_step=5 * 4 * OPTIONS).steps(5, 100):
    prices = price(spot, strike, years, volatility)
