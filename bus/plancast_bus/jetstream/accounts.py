"""A nats-server account for each login, connected to the runtime's account by exports and imports.

A nats-server does not check permissions on reply subjects: a login that may publish a request can make the server
publish the response on any subject of its account. So logins that do not trust each other have separate accounts. This
module defines the subjects that cross accounts, for each role.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from plancast_bus.events.envelope import EventTopic
from plancast_bus.jetstream.client.login import WHO_AM_I
from plancast_bus.jetstream.streams.definitions import StreamNames, restoring_stream
from plancast_bus.subjects import Subjects, check_event_type, name_of_type, task_consumer_name, undo_type
from plancast_bus.topics import WORK_QUEUES

ANSWER_SECONDS = 60
"""Seconds for which the server routes responses to a message or a pull; a pull has a heartbeat every 5 s."""
READ_SECONDS = 10
"""The same for a batched direct get, which is answered at once."""
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST_NAME = 60


class Role(StrEnum):
    """The role of a login."""

    RUNTIME = "runtime"
    """Dispatchers, hosts, reasoners, the console and deployments; owns the streams."""
    CLIENT = "client"
    """Submits goals, signals plans, receives results."""
    WORKER = "worker"
    """Executes its tasks."""
    OBSERVER = "observer"
    """Reads plans, history, dead letters and registrations, and receives every event."""
    OPERATOR = "operator"
    """Client and observer; also creates and changes schedules."""
    BACKUP = "backup"
    """Copies all streams, and receives every event, timer and response meanwhile."""


@dataclass(frozen=True)
class Login:
    """A user of the nats-server.

    Raises:
        ValueError: its name, or the name of a task, is invalid.
    """

    name: str
    role: Role
    tasks: tuple[str, ...] = ()
    """Event types of a worker's tasks. Those that undo them need not be named."""

    def __post_init__(self) -> None:
        check_name(self.name)
        for task in self.tasks:
            check_event_type(task)
        if (self.role is Role.WORKER) != bool(self.tasks):
            raise ValueError(f"login {self.name!r}: workers have tasks, and other roles have none")

    @property
    def inbox(self) -> str:
        return f"_INBOX.{self.name}"

    @property
    def variable(self) -> str:
        """Environment variable from which a server reads the public key."""
        return f"{self.name.upper().replace('-', '_')}_NKEY"


def check_name(name: str) -> str:
    """Return the name if it is valid for a login or tenant.

    Raises:
        ValueError: it is not.
    """
    if len(name) > _LONGEST_NAME or not _NAME.fullmatch(name):
        raise ValueError(
            f"{name[:80]!r} is no name for a login or tenant: use a-z 0-9 and single dashes, and begin with a letter"
        )
    return name


@dataclass(frozen=True)
class Access:
    """The subjects that an account imports from the runtime's, and the only ones its user may use."""

    publishes: tuple[str, ...] = ()
    """Subjects with one response: events, registrations and direct gets of one message."""
    reads: tuple[str, ...] = ()
    """Batched direct gets: many responses, at once."""
    pulls: tuple[str, ...] = ()
    """Pulls of consumers: many responses, until the pull expires."""
    receives: tuple[str, ...] = ()
    """Subjects whose messages the account receives."""

    def events(self, subjects: Subjects) -> tuple[str, ...]:
        return tuple(each for each in self.publishes if each.startswith(f"{subjects.prefix}."))

    def __or__(self, other: Access) -> Access:
        return Access(
            _merged(self.publishes, other.publishes),
            _merged(self.reads, other.reads),
            _merged(self.pulls, other.pulls),
            _merged(self.receives, other.receives),
        )


def access_of(login: Login, subjects: Subjects) -> Access:
    """Return the access of a login; the runtime's has none, since it owns the streams."""
    match login.role:
        case Role.CLIENT:
            return _client(login, subjects)
        case Role.WORKER:
            return _worker(login, subjects)
        case Role.OBSERVER:
            return _observer(subjects)
        case Role.OPERATOR:
            return _client(login, subjects) | _observer(subjects) | Access(publishes=(subjects.schedules,))
        case Role.BACKUP:
            return _backup(subjects)
        case Role.RUNTIME:
            raise ValueError("the runtime's account owns the streams: it imports nothing")


def _client(login: Login, subjects: Subjects) -> Access:
    names, prefix = StreamNames.of(subjects.prefix), subjects.prefix
    return Access(
        publishes=(
            f"{prefix}.{EventTopic.ACTION_REQUESTS}.*.>",
            f"{prefix}.{EventTopic.PLAN_EVENTS}.*.>",
            *_values(subjects),
        ),
        reads=(_get(names.registry),),  # to refuse a goal without an app at once
        receives=(f"{login.inbox}.>",),  # the runtime sends results to the inbox of the submitter
    )


def _worker(login: Login, subjects: Subjects) -> Access:
    names, prefix, store = StreamNames.of(subjects.prefix), subjects.prefix, subjects.store
    tasks = [*login.tasks, *map(undo_type, login.tasks)]
    consumers = [task_consumer_name(task) for task in tasks]
    records = [f"{store}.registry.task.{name_of_type(task)}.*" for task in tasks]
    records += [f"{store}.registry.effect.{name_of_type(task)}.*" for task in login.tasks]
    return Access(
        publishes=(
            f"{prefix}.{EventTopic.ACTION_RESULTS}.*.>",
            f"{prefix}.{EventTopic.BUSINESS_FACTS}.*.>",
            subjects.registered("agent"),
            subjects.registered("event"),
            subjects.dead_letter("*", "login"),
            subjects.every_progress,
            *_values(subjects),
            *records,
            *(f"{_get(names.meta)}.{record}" for record in records),
            *(f"$JS.ACK.{names.requests}.{consumer}.>" for consumer in consumers),
        ),
        reads=(_get(names.registry),),
        pulls=tuple(f"$JS.API.CONSUMER.MSG.NEXT.{names.requests}.{consumer}" for consumer in consumers),
        receives=tuple(map(subjects.withdrawals, tasks)),
    )


def _values(subjects: Subjects) -> tuple[str, ...]:
    """The subjects on which a login stores large data, and reads it by its hash.

    It may not read the stream: a direct get takes wildcards in the place of a hash.
    """
    return subjects.values("login"), subjects.plans_with_values, subjects.value_reads


def _observer(subjects: Subjects) -> Access:
    names, every_plan = StreamNames.of(subjects.prefix), subjects.checkpoints
    single = (
        f"{_get(names.checkpoints)}.{every_plan}",
        f"{_get(names.values)}.{subjects.store}.values.>",
        f"{_get(names.values)}.{subjects.store}.sentvalues.>",
        subjects.value_reads,
        f"{_get(names.meta)}.{subjects.store}.aliases.*",
        f"{_get(names.meta)}.{subjects.machine('*')}",
        f"{_get(names.schedules)}.{subjects.schedules}",
    )
    read = (names.checkpoints, names.history, names.dead_letters, names.registry, names.schedules, names.progress)
    return Access(publishes=single, reads=tuple(map(_get, read)), receives=(_all_events(subjects), every_plan))


def _backup(subjects: Subjects) -> Access:
    """The access to copies of all streams. The runtime requests the snapshots: the server sends one to any subject."""
    names = StreamNames.of(subjects.prefix)
    streams = (*names.all(), names.keys)
    queues = [names.of_source(source) for source in WORK_QUEUES]
    return Access(
        publishes=(
            *map(subjects.snapshot_request, (*streams, restoring_stream(subjects)["name"])),
            *(f"$JS.SNAPSHOT.ACK.{stream}.>" for stream in streams),
        ),
        reads=tuple(map(_get, queues)),
        receives=(*subjects.journaled(), subjects.snapshot("*")),
    )


def check_logins(logins: Sequence[Login]) -> None:
    """Check that no login gets access to the tasks of another one by their names.

    Raises:
        ValueError: a task of one login has the name of the undo of another login's task.
    """
    for login in logins:
        undos = {undo_type(task): other.name for other in logins if other is not login for task in other.tasks}
        for task in login.tasks:
            if task in undos:
                raise ValueError(
                    f"login {login.name!r}: the task {task!r} has the name of an undo of login {undos[task]!r}; "
                    "rename it, or give both tasks to one login"
                )


def accounts(
    logins: Sequence[Login], keys: Mapping[str, str], subjects: Subjects, tenant: str = ""
) -> dict[str, dict[str, Any]]:
    """Return the accounts of one deployment, in the form of a nats-server's configuration.

    Args:
        logins: The logins. Those of the runtime share an account, all others have one each.
        keys: The public nkey of each login, by name.
        subjects: The subjects of the deployment.
        tenant: Tenant of the deployment; each has its own accounts, streams and storage under the same subjects.

    Raises:
        ValueError: as of :func:`check_logins`.
    """
    check_logins(logins)
    granted = {login.name: access_of(login, subjects) for login in logins if login.role is not Role.RUNTIME}
    owner = _account("runtime", tenant)
    made: dict[str, dict[str, Any]] = {
        owner: {
            "jetstream": "enabled",
            "users": [{"nkey": keys[login.name]} for login in logins if login.role is Role.RUNTIME],
            "exports": _exports({_account(name, tenant): access for name, access in granted.items()}),
        }
    }
    # Imports are not transitive: accounts that receive every event import the events of other accounts directly.
    receivers = [name for name, access in granted.items() if _all_events(subjects) in access.receives]
    for login in logins:
        if login.name not in granted:
            continue
        publishing = {
            _account(name, tenant): access.events(subjects)
            for name, access in granted.items()
            if login.name in receivers and name != login.name
        }
        account = _restricted(login, keys[login.name], granted[login.name], owner, publishing)
        listeners = [_account(name, tenant) for name in receivers if name != login.name]
        events = granted[login.name].events(subjects)
        account["exports"] = [{"stream": subject, "accounts": listeners} for subject in events if listeners]
        made[_account(login.name, tenant)] = account
    return made


def _restricted(
    login: Login, key: str, access: Access, owner: str, publishing: Mapping[str, Iterable[str]]
) -> dict[str, Any]:
    """Build an account that imports from the owner of the streams, and events from other accounts."""
    services = (*access.publishes, *access.reads, *access.pulls)
    own_inbox = f"{login.inbox}.>"
    streams = [(owner, subject) for subject in access.receives]
    streams += [(account, subject) for account, events in publishing.items() for subject in events]
    return {
        # The account is the boundary. The permissions only turn missing responses into explicit errors.
        "users": [
            {
                "nkey": key,
                "permissions": {
                    "publish": {"allow": [*services, "$JS.API.INFO", WHO_AM_I]},
                    "subscribe": {"allow": [*_merged((own_inbox,), access.receives)]},
                },
            }
        ],
        "imports": [
            *({"service": {"account": owner, "subject": subject}} for subject in services),
            *({"stream": {"account": account, "subject": subject}} for account, subject in streams),
        ],
    }


def _exports(granted: Mapping[str, Access]) -> list[dict[str, Any]]:
    """Build the exports of the runtime's account, each restricted to the accounts that import it."""
    made: dict[tuple[str, str], dict[str, Any]] = {}

    def export(kind: str, exported: Iterable[str], account: str, **options: str) -> None:
        for subject in exported:
            entry = made.setdefault((kind, subject), {kind: subject, **options, "accounts": []})
            entry["accounts"].append(account)

    for account, access in granted.items():
        export("service", access.publishes, account, response_threshold=f"{ANSWER_SECONDS}s")
        export("service", access.reads, account, response_type="stream", response_threshold=f"{READ_SECONDS}s")
        export("service", access.pulls, account, response_type="stream", response_threshold=f"{ANSWER_SECONDS}s")
        export("stream", access.receives, account)
    return list(made.values())


def _all_events(subjects: Subjects) -> str:
    return f"{subjects.prefix}.>"


def _account(name: str, tenant: str) -> str:
    """Name an account; the dot separates tenants unambiguously, since names may contain dashes."""
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
"""The part of the configuration that is independent of apps and logins."""
