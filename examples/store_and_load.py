"""Stores a prompt's KV cache and loads it back, in Python.

    python store_and_load.py "file:///tmp/kv?pool=64MiB&flash=256MiB"     or tcp://127.0.0.1:7070
"""

import hashlib
import sys

import kvdepot

LAYERS, BLOCKS, SLAB_BYTES = 4, 6, 32 * 1024


def finish(client, op):
    """Waits for the end of an operation and gives its memory back."""
    done = client.wait(op, timeout_ms=30_000)
    client.release(op)
    if done is None or not done.ok:
        sys.exit(f"the operation ended with {done.code if done else 'no answer'}")
    return done


def main(depot):
    with kvdepot.Client(depot, require_connection=True) as client:
        # Everything that the bytes depend on makes the namespace.
        ns = client.open_namespace("default", b"example-model, bf16, layout 1, Python", [
            dict(group=0, layers=LAYERS, slab_bytes=SLAB_BYTES, parts=2, block_tokens=16, order="LBHNC")])

        # The engine's KV memory, [layer][block] slabs. Any writable buffer will do; no byte of it is copied.
        memory = bytearray(LAYERS * BLOCKS * SLAB_BYTES)
        region = client.register(memory)
        layer_offsets = [layer * BLOCKS * SLAB_BYTES for layer in range(LAYERS)]
        block_offsets = [block * SLAB_BYTES for block in range(BLOCKS)]
        keys = b"".join(hashlib.sha256(b"prefix %d" % block).digest() for block in range(BLOCKS))

        # Store layer by layer, as the engine computes.
        put = client.multiput(ns, keys, 32, region, layer_offsets, block_offsets, whole=False, total_ms=20_000)
        for layer, offset in enumerate(layer_offsets):
            memory[offset:offset + BLOCKS * SLAB_BYTES] = bytes([layer + 1]) * (BLOCKS * SLAB_BYTES)
            client.put_layer(put, layer)
        finish(client, put)

        found = finish(client, client.match(ns, keys, 32)).prefix_blocks

        memory[:] = bytes(len(memory))
        get = client.multiget(ns, keys, 32, region, layer_offsets, block_offsets, total_ms=20_000)
        for layer, offset in enumerate(layer_offsets):
            done = client.wait(get, layer, 30_000)
            right = memory[offset] == layer + 1
            print(f"layer {layer}: {done.first_failed()} of {done.keys} blocks, {'as stored' if right else 'WRONG'}")
            if not right:
                return 1
        finish(client, get)
        print(f"{found} blocks matched, {client.stats()['bytes_loaded']} bytes loaded")
        return 0 if found == BLOCKS else 1


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} DEPOT")
    sys.exit(main(sys.argv[1]))
