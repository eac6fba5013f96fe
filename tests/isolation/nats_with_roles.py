"""A nats-server on what `plancast nats-config` writes, with certificates of its own."""

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

from plancast.cli import main
from plancast_bus.nats_server.process import find_binary
from plancast_bus.settings import NatsSettings

LOGINS = (
    "--client=client", "--client=rival", "--operator=operator", "--worker=worker=work.requested",
    "--worker=painter=image.render",
)  # fmt: skip


@dataclass(frozen=True)
class Certificates:
    """An authority, and what it has signed: a server of this machine, and a client."""

    ca: Path
    server: tuple[Path, Path]
    client: tuple[Path, Path]


def make_certificates(folder: Path, *hosts: str) -> Certificates:
    """Made by the openssl command, for this machine and ``hosts``; without the command the test is skipped."""
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
        names = ",".join(f"DNS:{host}" for host in ("localhost", *hosts))
        (folder / f"{name}.ext").write_text(f"subjectAltName={names},IP:127.0.0.1,email:{name}@example.com\n")
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
    """A server with a login for each role, running."""

    where: str
    folder: Path
    certificates: Certificates

    def settings(self, role: str, **changes: object) -> NatsSettings:
        """How a login connects; that of a tenant is ``tenant/login``."""
        said = {
            "url": f"tls://{self.where}",
            "nkey": self.seed(role),
            "tls_ca": self.certificates.ca,
            "inbox_prefix": f"_INBOX.{role.rpartition('/')[2]}",
            "publish_timeout": 5.0,
        }
        return NatsSettings.model_validate(said | changes)

    def seed(self, role: str) -> Path:
        """The file with the seed of a login."""
        return self.folder / "seeds" / f"{role}.nk"

    def environment(self, role: str) -> dict[str, str]:
        """How a command connects as a login."""
        return {
            "NATS_URL": f"tls://{self.where}",
            "PLANCAST_NATS__NKEY": str(self.seed(role)),
            "PLANCAST_NATS__TLS_CA": str(self.certificates.ca),
            "PLANCAST_NATS__INBOX_PREFIX": f"_INBOX.{role.rpartition('/')[2]}",
        }


@contextmanager
def role_server(folder: Path, *options: str, alone: bool = False) -> Iterator[RoleServer]:
    """A server with the accounts that ``plancast nats-config`` writes; ``options`` of the command, or LOGINS.

    With ``alone`` the users have no permissions: nothing but the accounts holds them back.
    """
    certificates = make_certificates(folder)
    assert main(["nats-config", "--output", str(folder), *(options or LOGINS)]) == 0
    if alone:
        config = folder / "accounts.conf"
        accounts = json.loads(config.read_text().split("accounts: ", 1)[1])
        for user in (user for account in accounts.values() for user in account["users"]):
            user.pop("permissions", None)
        config.write_text("accounts: " + json.dumps(accounts))
    environment = {
        "NATS_CERT": str(certificates.server[0]),
        "NATS_KEY": str(certificates.server[1]),
        "NATS_STORE": str(folder / "store"),
    }
    with running(folder / "nats-server.conf", folder, environment) as where:
        yield RoleServer(where, folder, certificates)
