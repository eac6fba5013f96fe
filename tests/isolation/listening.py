"""Which addresses the processes of a tree listen on, as the kernel says."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path


def addresses_of(root: int) -> dict[str, str]:
    """For each address that a process or one of its descendants listens on, ``address:port``, the process' name."""
    owners: dict[str, str] = {}
    for pid in _tree(root):
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                if found := re.match(r"socket:\[(\d+)\]", str(descriptor.readlink())):
                    owners[found[1]] = name
        except OSError:
            continue  # it ended while we looked
    listening = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in owners:
                address, _, port = fields[1].partition(":")
                listening[f"{_decoded(address)}:{int(port, 16)}"] = owners[fields[9]]
    return listening


def is_loopback(address: str) -> bool:
    """Whether ``address:port`` is for this machine alone."""
    ip = ipaddress.ip_address(address.rpartition(":")[0])
    mapped = getattr(ip, "ipv4_mapped", None)
    return bool((mapped or ip).is_loopback)


def _decoded(address: str) -> str:
    """The kernel writes an address as words in the machine's byte order."""
    words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
    return str(ipaddress.ip_address(b"".join(words)))


def _tree(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    tree = [root]
    for pid in tree:
        tree += children.get(pid, ())
    return tree
