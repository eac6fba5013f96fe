"""Finds the user at the other end of a local TCP connection."""

from __future__ import annotations

import sys
from ipaddress import IPv6Address, ip_address
from pathlib import Path

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LOCAL, _REMOTE, _UID, _INODE = 1, 2, 7, 9


def is_known() -> bool:
    """Return whether this system lists the owners of TCP connections: Linux does, macOS does not."""
    return TABLES[0].exists()


def find_peer_owner(sockname: tuple[str, int], peername: tuple[str, int]) -> int | None:
    """Return the uid of the process that accepted a connection, given host and port of this and the other end.

    None: it is not yet accepted, no longer open, or the peer is on another machine.
    """
    ours, theirs = _entries(*sockname[:2]), _entries(*peername[:2])
    for table in TABLES:
        try:
            lines = table.read_text(encoding="ascii").splitlines()[1:]
        except FileNotFoundError:  # IPv6 is off
            continue
        for line in lines:
            columns = line.split()
            # Without an inode it is in the accept queue or closed; some kernels then list root as its owner.
            if columns[_LOCAL] in theirs and columns[_REMOTE] in ours and columns[_INODE] != "0":
                return int(columns[_UID])
    return None


def _entries(host: str, port: int) -> tuple[str, ...]:
    """List the forms of an address in the tables. A dual-stack listener has IPv4 peers in IPv6 form."""
    address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    forms = [address.packed]
    if address.version == 4:
        forms.append(IPv6Address(f"::ffff:{address}").packed)
    return tuple(f"{_in_words(form)}:{port:04X}" for form in forms)


def _in_words(packed: bytes) -> str:
    """Render an address as the kernel does: words of four bytes, each as a number of this machine's byte order."""
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
