"""LMCache's own remote connectors for Redis against a depot, unchanged: the native one (`resp://`) and the one on
redis-py (`redis://`). Not a test that runs by itself, as it needs LMCache:

    PYTHON_WITH_LMCACHE -m tests.e2e.resp_lmcache       # kvdepot is taken from PATH

bench/peers/lmcache.py says which packages make such an environment. Prints what was stored and read and ends with 0
when every chunk came back as it was.
"""

import asyncio
import socket
import sys
import threading
import types

import torch
from lmcache.v1.memory_allocators.ad_hoc_memory_allocator import AdHocMemoryAllocator
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.storage_backend.connector.redis_connector import RedisConnector, RESPConnector

from tests.e2e.depot_process import DepotProcess

CHUNKS = 24
SHAPE = torch.Size([2, 30, 256, 192])       # [k|v, layer, token, hidden]: 5.9 MB in bfloat16, as SmolLM2-135M's


class Key:
    """What a connector asks of a key."""

    def __init__(self, number):
        self._text = f"model@1@0@{number:064x}"

    def to_string(self):
        return self._text


def backend():
    """The parts of LMCache's engine that a connector uses: its settings, and memory for a chunk."""
    metadata = types.SimpleNamespace(get_shapes=lambda: [SHAPE], get_dtypes=lambda: [torch.bfloat16], use_mla=False,
                                     chunk_size=256, get_num_groups=lambda: 1)
    allocator = AdHocMemoryAllocator(device="cpu")
    return types.SimpleNamespace(config=types.SimpleNamespace(extra_config={}), metadata=metadata,
                                 allocate=lambda shapes, dtypes, fmt: allocator.allocate(shapes, dtypes, fmt))


def chunk(host, number):
    memory = host.allocate([SHAPE], [torch.bfloat16], MemoryFormat.KV_2LTD)
    generator = torch.Generator().manual_seed(number)
    memory.tensor.copy_(torch.randn(SHAPE, generator=generator).to(torch.bfloat16))
    return memory


def key_of(name, number):
    return Key((len(name) << 32) + number)


async def round_trips(name, connector, host):
    """What an engine does with a connector: look, store, look, load."""
    keys = [key_of(name, n) for n in range(CHUNKS)]
    for key in keys:
        assert not await connector.exists(key), "a chunk that nobody stored"
    await connector.batched_put(keys[:CHUNKS // 2], [chunk(host, n) for n in range(CHUNKS // 2)])
    for n in range(CHUNKS // 2, CHUNKS):
        await connector.put(keys[n], chunk(host, n))
    for n, key in enumerate(keys):
        assert await connector.exists(key), f"chunk {n} is not there"
        found = await connector.get(key)
        assert found is not None and torch.equal(found.tensor, chunk(host, n).tensor), f"chunk {n} is wrong"
    print(f"{name}: {CHUNKS} chunks of {chunk(host, 0).get_size():,} bytes came back as they were")


async def read_again(name, connector, host):
    for n in range(CHUNKS):
        found = await connector.get(key_of(name, n))
        assert found is not None and torch.equal(found.tensor, chunk(host, n).tensor), f"chunk {n} is lost"
    print(f"{name}: the same after SIGKILL and restart, over a new connection")


def main():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    depot = DepotProcess(extra=["--resp", f"tcp://127.0.0.1:{port}", "--resp-ack", "written"], pool="512MiB")
    with depot:
        host = backend()

        async def run():
            native = RESPConnector("127.0.0.1", port, loop, host, num_threads=4)
            await round_trips("resp://", native, host)
            native.client.close()
            plain = RedisConnector(f"redis://127.0.0.1:{port}", loop, host)
            await round_trips("redis://", plain, host)
            await asyncio.to_thread(depot.restart)
            plain = RedisConnector(f"redis://127.0.0.1:{port}", loop, host)
            await read_again("redis://", plain, host)

        asyncio.run_coroutine_threadsafe(run(), loop).result(300)
    return 0


if __name__ == "__main__":
    sys.exit(main())
