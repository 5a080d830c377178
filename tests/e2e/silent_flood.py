"""Connections that never speak: as many as are asked for, each opened again as soon as the depot has cut it.

    python -m tests.e2e.silent_flood HOST PORT COUNT        # until its input ends; then prints how many there were

A process of its own, as an attacker has one: it shares no lock with the client that wants in.
"""

import errno
import selectors
import socket
import subprocess
import sys
import time

FLOOD_SECONDS_MAX = 4.5     # in which most clients get in all the same; a silent one could keep its place for 5 s
ROUNDS = 5
ROUND_SECONDS_MAX = 60


class SilentFlood:
    """A flood towards an address, from entering the context on; `made`: its connections, when it is over."""

    def __init__(self, address, count):
        host, port = address.rsplit("/", 1)[-1].rsplit(":", 1)
        self.made = 0
        self._args = [host, port, str(count)]

    def __enter__(self):
        self._process = subprocess.Popen([sys.executable, "-m", "tests.e2e.silent_flood", *self._args],
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout.readline() == "flooding\n"
        return self

    def seconds_to_get_in(self, newcomer):
        """How long each of several clients took to connect and put; `newcomer()` makes one that puts by `put(tag)`.

        Each of its tries finds a place free by chance, some one in four on two cores: the slowest says little.
        """
        seconds = []
        for _ in range(ROUNDS):
            began = time.monotonic()
            peer = newcomer()
            while peer.put(1).failed_keys:
                assert time.monotonic() - began < ROUND_SECONDS_MAX, "it does not get in"
                time.sleep(0.01)
            seconds.append(time.monotonic() - began)
        return seconds

    def __exit__(self, *_):
        said, _ = self._process.communicate("", timeout=30)
        self.made = int(said)


def main():
    target, count = (sys.argv[1], int(sys.argv[2])), int(sys.argv[3])
    selector = selectors.DefaultSelector()
    made = 0

    def connect():
        while True:
            peer = socket.socket()
            peer.setblocking(False)
            if peer.connect_ex(target) in (0, errno.EINPROGRESS):
                break
            peer.close()    # no port is free
            time.sleep(0.01)
        selector.register(peer, selectors.EVENT_READ)

    for _ in range(count):
        connect()
        made += 1
    selector.register(sys.stdin, selectors.EVENT_READ)
    print("flooding", flush=True)
    while True:
        for key, _ in selector.select():
            if key.fileobj is sys.stdin:
                print(made, flush=True)
                return
            selector.unregister(key.fileobj)    # cut, or reset
            key.fileobj.close()
            connect()
            made += 1


if __name__ == "__main__":
    main()
