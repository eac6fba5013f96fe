"""The accounts of `plancast nats-config` on three servers: each login on a server of its own."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.cluster.nats_cluster import free_ports
from tests.isolation.nats_with_roles import Certificates, RoleServer
from tests.isolation.test_nats_auth import bus_of, deployed, states

from plancast import Client
from plancast.cli import main
from plancast_bus.jetstream.accounts import ANSWER_SECONDS
from plancast_bus.nats_server.process import find_binary
from plancast_bus.settings import NatsSettings

CONFIG = """
server_name: s{index}
listen: "127.0.0.1:{port}"
http: "127.0.0.1:{http}"
jetstream {{ store_dir: "{store}" }}
cluster {{ name: c, listen: "127.0.0.1:{route}", routes: [{routes}] }}
include "accounts.conf"
"""
SERVER_OF = {"runtime": 0, "client": 1, "observer": 1, "worker": 2}


@dataclass(frozen=True)
class RoleCluster(RoleServer):
    """Three servers without TLS; each login has one that it connects to first."""

    ports: list[int] = field(default_factory=list)
    monitors: list[int] = field(default_factory=list)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def settings(self, role: str, **changes: object) -> NatsSettings:
        said = {
            "url": f"nats://127.0.0.1:{self.ports[SERVER_OF[role]]}",
            "nkey": self.seed(role),
            "inbox_prefix": f"_INBOX.{role}",
            "publish_timeout": 20.0,
        }
        return NatsSettings.model_validate(said | changes)

    def open_answers(self) -> int:
        """Answers that the servers wait for on behalf of other accounts."""
        found = 0
        for monitor in self.monitors:
            with urllib.request.urlopen(f"http://127.0.0.1:{monitor}/accountz?acc=runtime", timeout=10) as answer:
                found += len(json.load(answer)["account_detail"].get("responses") or ())
        return found


@contextmanager
def role_cluster(folder: Path) -> Iterator[RoleCluster]:
    assert main(["nats-config", "--output", str(folder), "--worker=worker=work.requested"]) == 0
    ports = free_ports("127.0.0.1", 9)
    clients, routes, monitors = ports[:3], ports[3:6], ports[6:]
    urls = ", ".join(f'"nats://127.0.0.1:{route}"' for route in routes)
    nowhere = folder / "none"
    cluster = RoleCluster("", folder, Certificates(nowhere, (nowhere, nowhere), (nowhere, nowhere)), clients, monitors)
    with ExitStack() as stack:
        for index in range(3):
            config = folder / f"s{index}.conf"
            values = {"port": clients[index], "http": monitors[index], "route": routes[index], "routes": urls}
            config.write_text(CONFIG.format(index=index, store=folder / f"store{index}", **values))
            log = stack.enter_context((folder / f"s{index}.log").open("wb"))
            process = subprocess.Popen([find_binary(), "-c", config], stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.kill)
            cluster.processes.append(process)
        give_up = time.monotonic() + 60
        while not all(_is_ready(monitor) for monitor in monitors):
            assert time.monotonic() < give_up, (folder / "s0.log").read_text()
            time.sleep(0.1)
        yield cluster


def _is_ready(monitor: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{monitor}/healthz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.chaos  # it waits for two and a half minutes: `make cluster` runs it
@pytest.mark.timeout(400)
async def test_logins_work_across_servers_after_a_long_pause_and_a_lost_server(tmp_path: Path) -> None:
    with role_cluster(tmp_path) as cluster:
        async with (
            deployed(cluster, replicas=3),
            bus_of(cluster, "client") as client_bus,
            bus_of(cluster, "observer") as observer_bus,
            Client(client_bus) as client,
            Client(observer_bus) as observer,
        ):

            async def one() -> None:
                handle = await client.submit("x.goal", {})
                while (await states(observer.plan(handle.plan_id)))[-1] != "wait":
                    await asyncio.sleep(0.02)
                await handle.signal("go", {"by": "hand"})
                assert (await handle.result(60))["wait"] == {"by": "hand"}

            for _ in range(10):
                await one()
            # Pulls of an idle worker outlive the time after which the servers forget where an answer goes. Eight are
            # opened in half a minute: 60 by then if none were forgotten, about 40 at any time if they are.
            await asyncio.sleep(2.5 * ANSWER_SECONDS)
            assert await asyncio.to_thread(cluster.open_answers) < 50
            await one()
            assert len(await observer.plans()) == 11
            cluster.processes[SERVER_OF["worker"]].kill()
            for _ in range(3):
                await one()
