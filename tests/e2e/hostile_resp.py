"""What hostile Redis clients do to a depot; each function is an attack of hostile_attacks.py on its `--resp` port."""

import socket
import time

SECONDS_MAX = 10            # for an answer
LARGEST = 64 << 20          # a value that is still taken
VALUE = 1 << 20


def command(*words):
    words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def connect(attack):
    peer = socket.create_connection(attack.resp, SECONDS_MAX)
    attack.held.append(peer)
    return peer


def offer(peer, data):
    """Sends what is taken at once; returns how much that was, or 0 when the depot has ended the connection."""
    peer.setblocking(False)
    try:
        return peer.send(data)
    except OSError:
        return 0
    finally:
        peer.settimeout(SECONDS_MAX)


def skip(peer):
    """Reads what is there and keeps none of it; returns how much that was."""
    came = 0
    peer.setblocking(False)
    try:
        while piece := peer.recv(1 << 20):
            came += len(piece)
    except BlockingIOError:
        pass
    finally:
        peer.settimeout(SECONDS_MAX)
    return came


def ended(peer):
    """Whether the depot ends the connection, whatever it says before."""
    try:
        while peer.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


def ask(peer, *words, expect):
    peer.sendall(command(*words))
    said = b""
    while len(said) < len(expect):
        more = peer.recv(len(expect) - len(said))
        assert more, said
        said += more
    assert said == expect, said


def set_large(attack):
    ask(connect(attack), "SET", "large", b"v" * VALUE, expect=b"+OK\r\n")


def resp_loris(attack):
    """Commands and values one byte at a time, on connections that say nothing else."""
    begun = (b"", b"*3\r\n$3\r\nSET\r\n", b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n" % LARGEST)
    peers = [(connect(attack), begun[n % 3]) for n in range(30)]
    for peer, data in peers:
        peer.sendall(data)
    rest = (command("GET", "k" * 1000), b"$100000\r\n" + b"k" * 100_000, b"x" * 100_000)
    sent = 0
    while attack.goes_on:
        for n, (peer, _) in enumerate(peers):
            offer(peer, rest[n % 3][sent:sent + 1])
        sent += 1
        time.sleep(0.02)
    return {"connections": len(peers)}


def resp_bombs(attack):
    """Giant counts and lengths, lines without an end, other protocols: the connection is ended."""
    bombs = (b"*2147483648\r\n", b"*-5\r\n$3\r\nGET\r\n", b"*1\r\n$%d\r\n" % (1 << 62), b"*2\r\n$3\r\nGET\r\n$-7\r\n",
             b"*1\r\n+GET\r\n", b"*" + b"9" * 100_000, b"x" * 2_000_000, attack.random.randbytes(4000) + b"\r\n*z\r\n",
             b"*2\r\n$3\r\nGET\r\n$1\r\nkk\r\n*1\r\n")
    count = 0
    while attack.goes_on or count < len(bombs):
        peer = connect(attack)
        try:
            peer.sendall(bombs[count % len(bombs)])
            peer.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        assert ended(peer), f"bomb {count % len(bombs)} did not end its connection"
        peer.close()
        count += 1
    return {"ended": count}


def resp_deaf(attack):
    """Asks for large values and for statistics, pipelined, and never reads."""
    set_large(attack)
    burst = (command("GET", "large") + command("INFO") + command("MGET", *["large"] * 50)) * 50
    flows = [[connect(attack), b""] for _ in range(24)]
    sent = 0
    while attack.goes_on:
        for flow in flows:
            flow[1] = flow[1] or burst
            taken = offer(flow[0], flow[1])
            flow[1] = flow[1][taken:]
            sent += taken
        time.sleep(0.001)
    return {"bytes": sent}


def resp_crowd(attack):
    """No attack: 24 who ask for as many large values as fit resp_deaf's sockets, and read them. As crowd()."""
    set_large(attack)
    peers = [connect(attack) for _ in range(24)]
    for peer in peers:
        offer(peer, command("GET", "large") * 32)     # a receive buffer may be 32 MiB
    came = 0
    while attack.goes_on:
        for peer in peers:
            came += skip(peer)
        time.sleep(0.001)
    return {"bytes": came}


def resp_unfinished(attack):
    """Values of the largest size, none of which is ever finished."""
    for n in range(60):
        peer = connect(attack)
        offer(peer, b"*3\r\n$3\r\nSET\r\n$4\r\nk%03d\r\n$%d\r\n" % (n, LARGEST) + bytes(100_000))
    attack.rest()
    return {}


def resp_busy(attack):
    """Sets, gets and deletes the same few values without a pause; what it reads is what it wrote last."""
    peer = connect(attack)
    rounds = 0
    while attack.goes_on:
        value = b"%d" % rounds * (1 + rounds % 3000)
        ask(peer, "SET", "own", value, expect=b"+OK\r\n")
        ask(peer, "GET", "own", expect=b"$%d\r\n%s\r\n" % (len(value), value))
        ask(peer, "DEL", "own", expect=b":1\r\n")
        rounds += 1
    return {"rounds": rounds}


ATTACKS = {attack.__name__: attack for attack in (
    resp_loris, resp_bombs, resp_crowd, resp_deaf, resp_unfinished, resp_busy)}
