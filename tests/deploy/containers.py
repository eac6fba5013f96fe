"""Containers without a container engine: overlays of this machine's root, in namespaces of their own.

``Image.build`` runs the steps of a Dockerfile in an overlay, on this machine's Debian and Python in place of the base
image's. A ``Network`` runs containers side by side, each with its own address, processes, ``/etc/hosts``, files and
user. Requires root, overlayfs, util-linux and iproute2.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

from pydantic import BaseModel

PATH = "/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin"
NAMESPACES = ("--net", "--mount", "--pid", "--uts", "--ipc")
MOUNT = (
    "mkdir -p {0}/upper {0}/work {0}/root && "
    "mount -t overlay -o lowerdir={1},upperdir={0}/upper,workdir={0}/work overlay {0}/root"
)
# As in the base image: the Python is in /usr/local, anyone can run it, and the user's number is free.
BASE = (
    "chmod 755 /root && userdel $(id -nu 1000 2>/dev/null) 2>/dev/null; "
    f"{Path(sys.base_prefix) / 'bin/python3'} -m venv /usr/local"
)
INSTRUCTION = re.compile(r"^(RUN|COPY|ENV|USER|WORKDIR) +((?:.*\\\n)*.*)$", re.MULTILINE)


@cache
def unavailable() -> str:
    """Return the reason why this machine cannot run containers; empty if it can."""
    if missing := [tool for tool in ("unshare", "nsenter", "setpriv", "ip", "wget") if not shutil.which(tool)]:
        return f"{', '.join(missing)} not found"
    tried = run(
        ["unshare", *NAMESPACES, "--fork", "sh", "-c", f"mount -t tmpfs tmpfs /mnt && {MOUNT.format('/mnt', '/')}"]
    )
    return tried.stderr.strip()


def run(command: Sequence[str], **options: object) -> subprocess.CompletedProcess[str]:
    """The completed command, with its output."""
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=900, **options)  # type: ignore[call-overload,no-any-return]


class Image(BaseModel):
    """The result of a Dockerfile's steps: a layer of files over this machine's root, and settings."""

    folder: Path
    environment: dict[str, str] = {"PATH": PATH, "HOME": "/home/plancast"}
    user: str = "0"
    folder_within: str = "/"

    @classmethod
    def build(cls, dockerfile: Path, context: Path, folder: Path) -> Self:
        """Run all steps of ``dockerfile``; what it copies is taken from ``context``, as it is now."""
        made = cls(folder=folder)
        made._run(BASE)
        for kind, rest in INSTRUCTION.findall(dockerfile.read_text()):
            words = shlex.split(rest.replace("\\\n", " "))
            if kind == "RUN":
                made._run(rest)
            elif kind == "ENV":
                made.environment |= dict(word.split("=", 1) for word in words)
            elif kind == "USER":
                made.user = words[0]
            elif kind == "WORKDIR":
                made._run(f"mkdir -p {words[0]}")
                made.folder_within = words[0]
            else:
                *names, target = words
                made._copy([context / name for name in names], target)
        return made

    def _copy(self, sources: Sequence[Path], target: str) -> None:
        place = self.folder / "upper" / target.lstrip("/")
        for source in sources:
            to = place / source.name if target.endswith("/") else place
            to.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, to, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, to)

    def _run(self, step: str) -> None:
        # Where pip finds packages is this machine's matter, not the image's.
        machine = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        script = (
            f"{MOUNT.format(self.folder, '/')} && mount --rbind /proc {self.folder}/root/proc "
            f"&& mount --rbind /dev {self.folder}/root/dev "
            f"&& exec chroot {self.folder}/root env -C {self.folder_within} sh -ec {shlex.quote(step)}"
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        done = run(
            ["unshare", "--mount", "sh", "-c", script],
            env=machine | self.environment | {"HOME": "/root", "DEBIAN_FRONTEND": "noninteractive"},
        )
        if done.returncode:
            raise AssertionError(f"{step}\n{done.stdout}{done.stderr}")


@dataclass
class Container:
    """A running command of an image, in namespaces of its own."""

    name: str
    address: str
    image: Image
    process: subprocess.Popen[bytes]
    log: Path
    environment: dict[str, str]
    user: str
    first: int  # the process that is the container's first, as this machine counts

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """The completed command, run in the container as the container's user."""
        enter = ["nsenter", "--target", str(self.first), *NAMESPACES, "--root", "--"]
        return run([*enter, *as_user(self.user), "env", "-C", "/", *command], env=self.environment)

    def wait_until(self, *command: str, seconds: float = 240) -> str:
        """Output of a command, as soon as it succeeds in the container."""
        deadline = time.monotonic() + seconds
        while (done := self.run(*command)).returncode:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{self.name}: {command} said:\n{done.stdout}{done.stderr}\n{self.said()}")
            time.sleep(0.5)
        return done.stdout

    def wait(self, seconds: float = 600) -> int:
        """The exit code of the container's command."""
        return self.process.wait(seconds)

    def said(self) -> str:
        """Return the container's log."""
        return f"--- {self.name} ---\n{self.log.read_text(errors='replace')[-6000:]}"

    def wait_until_said(self, text: str, seconds: float = 600) -> None:
        """Wait until the container has logged a text."""
        deadline = time.monotonic() + seconds
        while text not in self.log.read_text(errors="replace"):
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, f"{text!r} is not in\n{self.said()}"
            time.sleep(0.2)

    def kill(self) -> None:
        """End all of its processes at once, as the loss of its machine does."""
        if self.process.poll() is None:
            os.kill(self.first, signal.SIGKILL)
        self.process.wait()


def as_user(user: str) -> list[str]:
    """The prefix of a command that takes all privileges from it."""
    if user == "0":
        return []
    return ["setpriv", "--reuid", user, "--regid", user, "--clear-groups", "--no-new-privs", "--bounding-set=-all"]


class Network:
    """Containers that reach each other by name, and nothing else. Leaving it ends them.

    Args:
        image: What the containers run.
        folder: For what they write.
    """

    def __init__(self, image: Image, folder: Path) -> None:
        self.image = image
        self._folder = folder
        self._folder.mkdir()
        self._ended = ExitStack()
        self._hosts = folder / "hosts"
        self._hosts.write_text("127.0.0.1 localhost\n")
        self._numbers = itertools.count(2)
        self.containers: dict[str, Container] = {}

    def __enter__(self) -> Self:
        # Folders below each other cannot be lower layers of one overlay: containers lie over the image's overlay.
        script = f"{MOUNT.format(self.image.folder, '/')} && echo && exec sleep infinity"
        holder = subprocess.Popen(["unshare", "--net", "--mount", "sh", "-c", script], stdout=subprocess.PIPE)
        self._ended.callback(holder.wait)
        self._ended.callback(holder.kill)
        assert holder.stdout is not None
        with holder.stdout as output:
            assert output.readline(), "the image cannot be mounted"
        self._holder = ["nsenter", "--target", str(holder.pid)]
        self._network(
            "ip link add br0 type bridge; ip addr add 10.77.0.1/24 dev br0; ip link set br0 up; ip link set lo up"
        )
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.close()

    def start(
        self, name: str, command: Sequence[str], *, environment: Mapping[str, str] = {},
        files: Mapping[str, Path] = {}, memory: Sequence[str] = ("/tmp", "/dev/shm", "/run"),
        user: str = "", folder: str = "", read_only: bool = False, aliases: Sequence[str] = (),
    ) -> Container:  # fmt: skip
        """Start ``command`` below an init process; a container of the same name must have ended.

        Args:
            files: Files and folders of this machine by where the container sees them. It can write to folders.
            memory: Folders that are empty, and in memory.
            folder: Where the command runs, as a container's path; the image's by default.
            read_only: Whether the container's root is.
            aliases: Further names of the container for the others.
        """
        number = next(self._numbers)
        address = f"10.77.0.{number}"
        place, log = self._folder / f"{number}-{name}", self._folder / f"{number}-{name}.log"
        place.mkdir()
        others = [line for line in self._hosts.read_text().splitlines() if line.split()[1] != name]
        # Written in place, since it is the same file in all containers: they see names that come later.
        self._hosts.write_text("\n".join([*others, f"{address} {' '.join((name, *aliases))}", ""]))
        image, root, user = self.image, f"{place}/root", user or self.image.user
        binds = [f"mkdir -p {root}{path} && mount -t tmpfs -o mode=1777 tmpfs {root}{path}" for path in memory]
        for path, source in {"/etc/hosts": self._hosts, **files}.items():
            target = f"{root}{path}"
            make = f"mkdir -p {target}" if source.is_dir() else f"mkdir -p $(dirname {target}) && touch {target}"
            binds.append(f"{make} && mount --bind {source} {target}")
        # gRPC's own resolver asks DNS before it reads /etc/hosts, and here is none.
        within = {**environment, "HOSTNAME": name, "GRPC_DNS_RESOLVER": "native"}
        started = [*as_user(user), "env", "-C", folder or image.folder_within, "tini", "--", *command]
        script = "\n".join([
            "set -e",
            f"hostname {name}; ip link set lo up",
            "until ip link show eth0 >/dev/null 2>&1; do sleep 0.05; done",
            f"ip addr add {address}/24 dev eth0; ip link set eth0 up; ip route add default via 10.77.0.1",
            MOUNT.format(place, image.folder / "root"),
            f"mount -t proc proc {root}/proc; mount --rbind /dev {root}/dev",
            *binds,
            f"mount -o remount,bind,ro {root}" if read_only else "",
            f"exec chroot {root} {shlex.join(started)}",
        ])  # fmt: skip
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*self._holder, "--mount", "unshare", *NAMESPACES, "--fork", "sh", "-c", script],
                env=image.environment | within, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        while not (first := run(["pgrep", "--parent", str(process.pid)]).stdout.strip()):
            assert process.poll() is None, log.read_text()
        made = Container(name, address, image, process, log, image.environment | within, user, int(first))
        self._ended.callback(made.kill)
        self._network(
            f"ip link add v{number} type veth peer name eth0 netns {first}; "
            f"ip link set v{number} master br0; ip link set v{number} up"
        )
        while (Path("/proc") / first / "root").readlink() == Path("/"):
            time.sleep(0.01)  # until it has entered the container's root, which what joins it later enters, too
            assert process.poll() is None, log.read_text()
        self.containers[name] = made
        return made

    def _network(self, script: str) -> None:
        done = run([*self._holder, "--net", "sh", "-ec", script])
        assert done.returncode == 0, done.stderr
