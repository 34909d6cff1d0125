"""Functions, coroutines and generators whose every call is a block.

python examples/decorator.py
"""

import asyncio

import gpusense

gpusense.enable()


@gpusense.trace("square")
def square(x):
    return x * x


@gpusense.trace()  # without a name: the function's own
async def fetch(x):
    await asyncio.sleep(0.001)
    return x


@gpusense.trace("batches")  # open while the generator's own code runs, not while its user works
def batches(count):
    for i in range(count):
        yield square(i)


async def main():
    print(await asyncio.gather(*(fetch(i) for i in range(4))), list(batches(3)))


asyncio.run(main())
for row in gpusense.get_tracer().summary().operations:
    print(f"{' / '.join(row.path):<20} {row.count} calls, {row.avg_ns / 1e6:.3f} ms on average")
