"""A nats-server on the example configuration of deploy/nats, with keys and certificates of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import nkeys
import pytest

from plancast_bus.server import find_binary
from plancast_bus.settings import NatsSettings

EXAMPLE = Path(__file__).parents[2] / "deploy" / "nats" / "nats-server.conf"
ROLES = ("client", "worker", "runtime", "observer")


@dataclass(frozen=True)
class Certificates:
    """An authority, and what it has signed: a server of this machine, and a client."""

    ca: Path
    server: tuple[Path, Path]
    client: tuple[Path, Path]


def make_certificates(folder: Path) -> Certificates:
    """Made by the openssl command; without it the test is skipped."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl to make certificates with")

    def run(*arguments: str) -> None:
        subprocess.run([openssl, *arguments], check=True, capture_output=True, cwd=folder)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    run("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=test authority")
    signed: dict[str, tuple[Path, Path]] = {}
    for name in ("server", "client"):
        run("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (folder / f"{name}.ext").write_text(f"subjectAltName=DNS:localhost,IP:127.0.0.1,email:{name}@example.com\n")
        run(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
            "-days", "2", "-extfile", f"{name}.ext", "-out", f"{name}.pem",
        )  # fmt: skip
        signed[name] = (folder / f"{name}.pem", folder / f"{name}.key")
    return Certificates(folder / "ca.pem", signed["server"], signed["client"])


def make_nkey(file: Path) -> str:
    """Write the seed of a new user's nkey to a file, and return the public half."""
    seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    file.write_bytes(seed)
    public: bytes = nkeys.from_seed(bytearray(seed)).public_key
    return public.decode()


@contextmanager
def running(config: Path, folder: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """A nats-server on a config but a free port of the loopback; yields ``host:port``."""
    with open(folder / "server.log", "wb") as log:
        process = subprocess.Popen(
            [find_binary(), "-c", config, "-a", "127.0.0.1", "-p", "-1", "--ports_file_dir", folder],
            env={**os.environ, **environment},
            stdout=log,
            stderr=log,
        )
        try:
            yield f"localhost:{_port(process, folder)}"
        finally:
            process.terminate()
            process.wait()


def _port(process: subprocess.Popen[bytes], folder: Path) -> int:
    while process.poll() is None:
        for note in folder.glob(f"*_{process.pid}.ports"):
            try:
                return urlsplit(json.loads(note.read_bytes())["nats"][0]).port or 0
            except ValueError:
                pass  # being written
        time.sleep(0.01)
    raise AssertionError((folder / "server.log").read_text())


@dataclass(frozen=True)
class RoleServer:
    """The example, running."""

    where: str
    folder: Path
    certificates: Certificates

    def settings(self, role: str, **changes: object) -> NatsSettings:
        """How a role connects."""
        said = {
            "url": f"tls://{self.where}",
            "nkey": self.folder / f"{role}.nk",
            "tls_ca": self.certificates.ca,
            "inbox_prefix": f"_INBOX.{role}",
            "publish_timeout": 5.0,
        }
        return NatsSettings.model_validate(said | changes)


@contextmanager
def example_server(folder: Path) -> Iterator[RoleServer]:
    """deploy/nats/nats-server.conf as it is."""
    certificates = make_certificates(folder)
    environment = {f"{role.upper()}_NKEY": make_nkey(folder / f"{role}.nk") for role in ROLES}
    environment |= {
        "NATS_CERT": str(certificates.server[0]),
        "NATS_KEY": str(certificates.server[1]),
        "NATS_STORE": str(folder / "store"),
    }
    with running(EXAMPLE, folder, environment) as where:
        yield RoleServer(where, folder, certificates)
