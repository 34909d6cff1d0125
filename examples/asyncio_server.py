"""A server whose every request is a block, also while many are in flight; it asks itself five questions and ends.

python examples/asyncio_server.py
"""

import asyncio

import gpusense

gpusense.enable()


async def serve(reader, writer):
    number = int(await reader.readline())
    with gpusense.trace("request", {"number": number}), gpusense.trace("infer"):
        await asyncio.sleep(0.01)  # the model
        writer.write(f"{number * number}\n".encode())
    await writer.drain()
    writer.close()


async def ask(port, number):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{number}\n".encode())
    answer = int(await reader.readline())
    writer.close()
    return answer


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        print(await asyncio.gather(*(ask(port, number) for number in range(5))))


asyncio.run(main())
tracer = gpusense.get_tracer()
row = tracer.summary().operation("request")
gpu = f"{row.gpu_ns / 1e6:.1f} ms" if tracer.status()["state"] == "running" else "not seen"
print(f"{row.count} requests, {row.avg_ns / 1e6:.1f} ms on average, GPU {gpu}")
