"""Accounts: a nats-server account for each login, joined to the runtime's by exports and imports.

A nats-server does not check permissions on reply subjects: a login that may publish one request can have the server
publish the answer on any subject of its account. So logins that must not trust each other have accounts of their own.
What crosses from one account to another is listed here, once, for each role.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from plancast_bus.events.envelope import EventTopic
from plancast_bus.jetstream.client.login import WHO_AM_I
from plancast_bus.jetstream.streams.definitions import StreamNames
from plancast_bus.subjects import Subjects, check_event_type, name_of_type, task_consumer_name

ANSWER_SECONDS = 60
"""After which the server forgets where the answer to a message or a pull goes; a pull has a heartbeat every 5 s."""
READ_SECONDS = 10
"""The same for a batched direct get, whose answer comes at once."""
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST_NAME = 60


class Role(StrEnum):
    """What a login is for."""

    RUNTIME = "runtime"
    """Dispatchers, hosts, reasoners, the console, and whoever deploys: they own the streams."""
    CLIENT = "client"
    """Submits goals, signals plans, receives results."""
    WORKER = "worker"
    """Does its tasks."""
    OBSERVER = "observer"
    """Reads plans, history, dead letters and registrations, and hears every event."""
    OPERATOR = "operator"
    """A client that is an observer too."""


@dataclass(frozen=True)
class Login:
    """A user of the nats-server.

    Raises:
        ValueError: its name, or the name of a task, cannot be used.
    """

    name: str
    role: Role
    tasks: tuple[str, ...] = ()
    """Of a worker: the event types of the tasks that it does."""

    def __post_init__(self) -> None:
        check_name(self.name)
        for task in self.tasks:
            check_event_type(task)
        if (self.role is Role.WORKER) != bool(self.tasks):
            raise ValueError(f"login {self.name!r}: a worker has tasks, and nobody else has")

    @property
    def inbox(self) -> str:
        """Prefix of its inboxes."""
        return f"_INBOX.{self.name}"

    @property
    def variable(self) -> str:
        """Name of the variable that a server reads its public key from."""
        return f"{self.name.upper().replace('-', '_')}_NKEY"


def check_name(name: str) -> str:
    """The name itself, when logins and tenants may have it.

    Raises:
        ValueError: they may not.
    """
    if len(name) > _LONGEST_NAME or not _NAME.fullmatch(name):
        raise ValueError(
            f"{name[:80]!r} is no name for a login or tenant: use a-z 0-9 and single dashes, and begin with a letter"
        )
    return name


@dataclass(frozen=True)
class Access:
    """What an account imports from the runtime's. Its user may do that, and nothing else."""

    publishes: tuple[str, ...] = ()
    """Subjects with one answer: events, registrations and direct gets of one message."""
    reads: tuple[str, ...] = ()
    """Batched direct gets: many answers, at once."""
    pulls: tuple[str, ...] = ()
    """Consumers: many answers, within the time that a pull waits."""
    hears: tuple[str, ...] = ()
    """Subjects whose messages are passed on to it."""

    def events(self, subjects: Subjects) -> tuple[str, ...]:
        """The events that it publishes."""
        return tuple(each for each in self.publishes if each.startswith(f"{subjects.prefix}."))

    def __or__(self, other: Access) -> Access:
        return Access(
            _merged(self.publishes, other.publishes),
            _merged(self.reads, other.reads),
            _merged(self.pulls, other.pulls),
            _merged(self.hears, other.hears),
        )


def access_of(login: Login, subjects: Subjects) -> Access:
    """What a login other than the runtime's may do."""
    match login.role:
        case Role.CLIENT:
            return _client(login, subjects)
        case Role.WORKER:
            return _worker(login, subjects)
        case Role.OBSERVER:
            return _observer(subjects)
        case Role.OPERATOR:
            return _client(login, subjects) | _observer(subjects)
        case Role.RUNTIME:
            raise ValueError("the runtime's account owns the streams: it imports nothing")


def _client(login: Login, subjects: Subjects) -> Access:
    names, prefix = StreamNames.of(subjects.prefix), subjects.prefix
    return Access(
        publishes=(f"{prefix}.{EventTopic.ACTION_REQUESTS}.*.>", f"{prefix}.{EventTopic.PLAN_EVENTS}.*.>"),
        reads=(_get(names.registry),),  # a goal that no app takes is refused at once
        hears=(f"{login.inbox}.>",),  # the runtime sends results to the inbox of who submitted the goal
    )


def _worker(login: Login, subjects: Subjects) -> Access:
    names, prefix, store = StreamNames.of(subjects.prefix), subjects.prefix, subjects.store
    consumers = [task_consumer_name(task) for task in login.tasks]
    records = [f"{store}.registry.task.{name_of_type(task)}.*" for task in login.tasks]
    return Access(
        publishes=(
            f"{prefix}.{EventTopic.ACTION_RESULTS}.*.>",
            f"{prefix}.{EventTopic.BUSINESS_FACTS}.*.>",
            subjects.registered("agent"),
            subjects.registered("event"),
            subjects.dead_letter("*", "login"),
            *records,
            *(f"{_get(names.meta)}.{record}" for record in records),
            *(f"$JS.ACK.{names.requests}.{consumer}.>" for consumer in consumers),
        ),
        reads=(_get(names.registry),),
        pulls=tuple(f"$JS.API.CONSUMER.MSG.NEXT.{names.requests}.{consumer}" for consumer in consumers),
    )


def _observer(subjects: Subjects) -> Access:
    names, every_plan = StreamNames.of(subjects.prefix), f"{subjects.store}.checkpoints.*"
    single = (
        f"{_get(names.checkpoints)}.{every_plan}",
        f"{_get(names.meta)}.{subjects.store}.aliases.*",
        f"{_get(names.meta)}.{subjects.machine('*')}",
    )
    read = (names.checkpoints, names.history, names.dead_letters, names.registry)
    return Access(publishes=single, reads=tuple(map(_get, read)), hears=(_every_event(subjects), every_plan))


def accounts(
    logins: Sequence[Login], keys: Mapping[str, str], subjects: Subjects, tenant: str = ""
) -> dict[str, dict[str, Any]]:
    """The accounts of one deployment, as a nats-server's configuration has them.

    Args:
        logins: Of the deployment. Those of the runtime share an account, all others have one each.
        keys: The public nkey of each login, by name.
        subjects: Of the deployment.
        tenant: Whose deployment it is; tenants have accounts, streams and storage of their own under the same subjects.
    """
    granted = {login.name: access_of(login, subjects) for login in logins if login.role is not Role.RUNTIME}
    owner = _account("runtime", tenant)
    made: dict[str, dict[str, Any]] = {
        owner: {
            "jetstream": "enabled",
            "users": [{"nkey": keys[login.name]} for login in logins if login.role is Role.RUNTIME],
            "exports": _exports({_account(name, tenant): access for name, access in granted.items()}),
        }
    }
    # What enters the runtime's account by an import does not leave it by another: those who hear every event hear what
    # others publish from the accounts of these.
    hearing = [name for name, access in granted.items() if _every_event(subjects) in access.hears]
    for login in logins:
        if login.name not in granted:
            continue
        publishing = {
            _account(name, tenant): access.events(subjects)
            for name, access in granted.items()
            if login.name in hearing and name != login.name
        }
        account = _restricted(login, keys[login.name], granted[login.name], owner, publishing)
        listeners = [_account(name, tenant) for name in hearing if name != login.name]
        events = granted[login.name].events(subjects)
        account["exports"] = [{"stream": subject, "accounts": listeners} for subject in events if listeners]
        made[_account(login.name, tenant)] = account
    return made


def _restricted(
    login: Login, key: str, access: Access, owner: str, publishing: Mapping[str, Iterable[str]]
) -> dict[str, Any]:
    """An account that imports from the owner of the streams, and events from other accounts that publish them."""
    services = (*access.publishes, *access.reads, *access.pulls)
    own_inbox = f"{login.inbox}.>"
    streams = [(owner, subject) for subject in access.hears]
    streams += [(account, subject) for account, events in publishing.items() for subject in events]
    return {
        # The account is the fence. The permissions have the server refuse by name what would stay unanswered.
        "users": [
            {
                "nkey": key,
                "permissions": {
                    "publish": {"allow": [*services, "$JS.API.INFO", WHO_AM_I]},
                    "subscribe": {"allow": [*_merged((own_inbox,), access.hears)]},
                },
            }
        ],
        "imports": [
            *({"service": {"account": owner, "subject": subject}} for subject in services),
            *({"stream": {"account": account, "subject": subject}} for account, subject in streams),
        ],
    }


def _exports(granted: Mapping[str, Access]) -> list[dict[str, Any]]:
    """What the runtime's account exports, each to the accounts that import it and to no other."""
    made: dict[tuple[str, str], dict[str, Any]] = {}

    def export(kind: str, exported: Iterable[str], account: str, **options: str) -> None:
        for subject in exported:
            entry = made.setdefault((kind, subject), {kind: subject, **options, "accounts": []})
            entry["accounts"].append(account)

    for account, access in granted.items():
        export("service", access.publishes, account, response_threshold=f"{ANSWER_SECONDS}s")
        export("service", access.reads, account, response_type="stream", response_threshold=f"{READ_SECONDS}s")
        export("service", access.pulls, account, response_type="stream", response_threshold=f"{ANSWER_SECONDS}s")
        export("stream", access.hears, account)
    return list(made.values())


def _every_event(subjects: Subjects) -> str:
    return f"{subjects.prefix}.>"


def _account(name: str, tenant: str) -> str:
    """The name of an account; a dot keeps tenants apart from logins whose names have dashes."""
    return f"{tenant}.{name}" if tenant else name


def _get(stream: str) -> str:
    return f"$JS.API.DIRECT.GET.{stream}"


def _merged(some: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*some, *more)))


SERVER = """\
# A nats-server for plancast: TLS, JetStream, and the accounts that `plancast nats-config` has written beside this file.
#
#   nats-server -c nats-server.conf
#
# From the environment: NATS_CERT, NATS_KEY (PEM files) and NATS_STORE (a folder). The server holds no secret but its
# TLS key: of each login it has the public half.

server_name: plancast
listen: "0.0.0.0:4222"
max_payload: 8MB

tls {
  cert_file: $NATS_CERT
  key_file: $NATS_KEY
  timeout: 5
}

jetstream {
  store_dir: $NATS_STORE
}

include "accounts.conf"
"""
"""The part of the configuration that knows nothing of apps and logins."""
