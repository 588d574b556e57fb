"""Tries whether the nodes of a run reach each other as their collectives will, and finds the interface that these use.

It is one file and imports only the standard library. The platform sends it over ssh, then a JSON line:

    {"word": ..., "interface": name or null, "peer": an address of another node, "ports": [first, last] or null}

The node listens on a port that the kernel chooses, as collectives do, and with `ports` on one of those of a rendezvous:

    {"address": ..., "interface": ..., "port": ..., "rendezvous": port or null, "range": "32768 to 60999"}
    {"error": "..."}                   it cannot

Then comes a JSON line [[address, port], ...] of the other nodes, and the node calls all of them at once:

    {"failed": [[number of the address in the list, reason], ...]}

It ends when its standard input does.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import json
import os
import random
import selectors
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

CALL_SECONDS = 10.0  # of all calls together: three repeats of the first packet
LISTEN_SECONDS = 600.0
MAX_CALLS = 128  # at the same time
PORT_TRIES = 50
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")  # from which collective libraries take it
_SIOCGIFADDR = 0x8915  # linux/sockios.h: the address of an interface
_PORT_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_ADDRESSES_6_FILE = Path("/proc/net/if_inet6")


class NoInterface(Exception):
    """The collectives have no interface. The message names it, or the address that leads to none."""


def addresses_of(interface: str) -> list[str]:
    """Return the addresses of an interface: its first of IPv4, then those of IPv6 that need no scope."""
    addresses = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        reply = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        addresses.append(socket.inet_ntoa(reply[20:24]))
    try:
        rows = [line.split() for line in _ADDRESSES_6_FILE.read_text(encoding="ascii").splitlines()]
    except OSError:
        rows = []
    addresses_6 = [socket.inet_ntop(socket.AF_INET6, bytes.fromhex(row[0])) for row in rows if row[5] == interface]
    return addresses + [address for address in addresses_6 if not ipaddress.ip_address(address).is_link_local]


def route_to(peer: str) -> tuple[str, str | None]:
    """Return the address from which this node reaches a peer, and its interface where that is found.

    Raises NoInterface for a name without an address here, and for one that leads to this node itself.
    """
    try:
        infos = socket.getaddrinfo(peer, 9, 0, socket.SOCK_DGRAM)
    except OSError as error:
        raise NoInterface(f"the name {peer} does not resolve here: {error.strerror}") from None
    reason = ""
    for family, kind, protocol, _, target in infos:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(target)  # sends nothing
                address = str(probe.getsockname()[0])
        except OSError as error:
            reason = f"{peer} ({target[0]}) cannot be reached: {error.strerror}"
            continue
        if ipaddress.ip_address(address.partition("%")[0]).is_loopback:
            reason = f"{peer} ({target[0]}) is a loopback address here, expected the other node's"
            continue
        names = [name for _, name in socket.if_nameindex() if address in addresses_of(name)]
        return address, names[0] if names else None
    raise NoInterface(reason or f"the name {peer} has no address here")


def interface_variables(peer: str | None) -> dict[str, str]:
    """Return the variables by which collectives take the interface that leads to a peer; none without a peer.

    Raises NoInterface.
    """
    _, interface = route_to(peer) if peer else ("", None)
    return dict.fromkeys(INTERFACE_VARIABLES, interface) if interface else {}


def own_address(interface: str | None, peer: str) -> tuple[str, str | None]:
    """Return the address that the collectives take here, and its interface. Raises NoInterface."""
    if interface is None:
        return route_to(peer)
    addresses = addresses_of(interface)
    if not addresses:
        names = ", ".join(name for _, name in socket.if_nameindex())
        raise NoInterface(f"the interface {interface} has no address here; there are {names}")
    return addresses[0], interface


def main() -> int:
    """Listen, call the other nodes, and print both answers. Return the exit code."""
    request = json.loads(sys.stdin.buffer.readline())
    word = request["word"].encode()
    try:
        address, interface = own_address(request["interface"], request["peer"])
        listeners = [_listener(address, [0])]
        if request["ports"]:
            first, last = request["ports"]
            ports = random.sample(range(first, last + 1), min(PORT_TRIES, last + 1 - first))
            listeners.append(_listener("", ports))
    except NoInterface as error:
        _answer(error=str(error))
        return 0
    except OSError as error:
        _answer(error=f"it cannot listen for the others: {error.strerror}")
        return 0
    for listener in listeners:
        threading.Thread(target=_serve, args=(listener, word), daemon=True).start()
    numbers = [listener.getsockname()[1] for listener in listeners]
    try:
        port_range = " to ".join(_PORT_RANGE_FILE.read_text(encoding="ascii").split())
    except OSError:
        port_range = "1024 to 65535"
    _answer(
        address=address,
        interface=interface,
        port=numbers[0],
        rendezvous=numbers[1] if len(numbers) > 1 else None,
        range=port_range,
    )
    threading.Timer(LISTEN_SECONDS, os._exit, (1,)).start()
    line = sys.stdin.buffer.readline()
    if line:
        failed = call_all([(host, port) for host, port in json.loads(line)], word)
        _answer(failed=sorted(failed.items()))
        sys.stdin.buffer.read()  # the others may still call
    return 0


def call_all(targets: list[tuple[str, int]], word: bytes) -> dict[int, str]:
    """Call all addresses, and return by number why one did not answer with the word."""
    failed: dict[int, str] = {}
    waiting = list(enumerate(targets))
    random.shuffle(waiting)  # not all nodes call the same one first
    open_calls: dict[int, tuple[float, bytearray]] = {}
    with selectors.DefaultSelector() as selector:
        while waiting or open_calls:
            while waiting and len(open_calls) < MAX_CALLS:
                number, (host, port) = waiting.pop()
                try:
                    selector.register(_begun_call(host, port), selectors.EVENT_READ, number)
                    open_calls[number] = time.monotonic() + CALL_SECONDS, bytearray()
                except OSError as error:
                    failed[number] = str(error.strerror or error)
            for key, _ in selector.select(0.2):
                number, call = key.data, key.fileobj
                received = open_calls[number][1]
                try:
                    part = call.recv(len(word) - len(received))  # type: ignore[union-attr]
                    received += part
                    is_over = not part or len(received) == len(word)
                    reason = None if received == word else "another program answers there"
                except OSError as error:
                    is_over, reason = True, error.strerror
                if is_over:
                    if reason:
                        failed[number] = reason
                    _end_call(selector, key, open_calls)
            for key in list(selector.get_map().values()):
                if time.monotonic() > open_calls[key.data][0]:
                    failed[key.data] = f"no answer within {CALL_SECONDS:g} s, as behind a firewall"
                    _end_call(selector, key, open_calls)
    return failed


def _begun_call(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, target = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)[0]
    call = socket.socket(family, kind, protocol)
    call.setblocking(False)
    code = call.connect_ex(target)
    if code not in (0, errno.EINPROGRESS):
        call.close()
        raise OSError(code, os.strerror(code))
    return call


def _end_call(selector: selectors.BaseSelector, key: selectors.SelectorKey, open_calls: dict[int, Any]) -> None:
    selector.unregister(key.fileobj)
    key.fileobj.close()  # type: ignore[union-attr]
    del open_calls[key.data]


def _listener(address: str, ports: list[int]) -> socket.socket:
    """Return a socket that listens on the first free port; without an address on all of both families."""
    problem: OSError | None = None
    families = [(socket.AF_INET6, "::"), (socket.AF_INET, "")]
    if address:
        families = [(socket.AF_INET6 if ":" in address else socket.AF_INET, address)]
    for port in ports:
        for family, place in families:
            try:
                listener = socket.socket(family, socket.SOCK_STREAM)
                if family == socket.AF_INET6:
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1 if address else 0)
                listener.bind((place, port))
                listener.listen(1024)
                return listener
            except OSError as error:
                problem = error
    assert problem is not None
    raise problem


def _serve(listener: socket.socket, word: bytes) -> None:
    """Send the word to every caller."""
    while True:
        call = listener.accept()[0]
        with contextlib.suppress(OSError):
            call.sendall(word)
        call.close()


def _answer(**content: Any) -> None:
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


if __name__ in ("__main__", "node_setup"):
    code = main()
    sys.stdout.flush()
    os._exit(code)
