"""`plancast nats-config`: writes accounts and keys for a nats-server."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from plancast.cli import completion
from plancast.cli.apps.validate import load_valid
from plancast.cli.connection import load_settings
from plancast.cli.errors import DONE, CommandFailed, usage_error
from plancast.cli.options import AsJson, Verbose
from plancast.terminal.output import note, plural, print_json, print_line, report_line

if TYPE_CHECKING:
    from plancast.app import App
    from plancast_bus.jetstream.accounts import Login, Role

SEEDS = "seeds"
ACCOUNTS, SERVER = "accounts.conf", "nats-server.conf"
HELM_ACCOUNTS, HELM_SECRETS = "nats-accounts.yaml", "nats-secrets.yaml"
_MADE = "# Written by `plancast nats-config`, which overwrites it; changes are lost.\n"


@dataclass(frozen=True)
class Seat:
    """A login, of a tenant's deployment or of the only one."""

    login: Login
    tenant: str
    seed: Path
    """File with the seed of its nkey."""

    @property
    def secret(self) -> str:
        """Name of the Kubernetes Secret that holds the seed."""
        return "-".join(filter(None, ("plancast", self.tenant, self.login.name, "nkey")))


def nats_config(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Folder to write to; existing keys are kept.")
    ],
    app: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODULE:APP]",
            help="An app; each of its workers gets a login for its tasks.",
            autocompletion=completion.apps,
            show_default=False,
        ),
    ] = None,
    clients: Annotated[
        list[str] | None,
        typer.Option("--client", metavar="NAME", help="Login that submits goals.  \\[default: client]"),
    ] = None,
    observers: Annotated[
        list[str] | None,
        typer.Option("--observer", metavar="NAME", help="Login that reads plans.  \\[default: observer]"),
    ] = None,
    operators: Annotated[
        list[str] | None, typer.Option("--operator", metavar="NAME", help="Login that does both, for `plancast plans`.")
    ] = None,
    workers: Annotated[
        list[str] | None, typer.Option("--worker", metavar="NAME=TASK,TASK", help="Login that runs these tasks only.")
    ] = None,
    backups: Annotated[
        list[str] | None, typer.Option("--backup", metavar="NAME", help="Login that takes backups.")
    ] = None,
    tenants: Annotated[
        list[str] | None,
        typer.Option("--tenant", metavar="NAME", help="Tenant that gets accounts and keys of its own. Repeatable."),
    ] = None,
    prefix: Annotated[
        str | None,
        typer.Option(
            metavar="PREFIX", help="First token of all subjects.  \\[default: $PLANCAST_BUS__PREFIX, else plancast]"
        ),
    ] = None,
    form: Annotated[
        Literal["nats", "helm"],
        typer.Option("--format", help="nats: files for a nats-server. helm: values for the NATS chart, and Secrets."),
    ] = "nats",
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> int:
    """Write a nats-server's accounts and the keys of all logins; each login but the runtime's has its own account.

    A login reaches only what its account imports. Run it again after changes: existing keys are kept.
    """
    from plancast_bus.errors import InvalidSubject
    from plancast_bus.jetstream.accounts import check_logins, check_name
    from plancast_bus.subjects import Subjects

    loaded = load_valid(app) if app is not None else None
    settings = load_settings(base=loaded.settings if loaded is not None else None)
    try:
        subjects = Subjects(prefix if prefix is not None else settings.bus.prefix)
        logins = _logins(loaded, clients, observers, operators, backups, workers, settings.workers.tasks)
        check_logins(logins)
        named = [check_name(each) for each in tenants or ()]
    except (ValueError, InvalidSubject) as error:
        raise usage_error(str(error)) from error
    _refuse_repeated("tenant", named)
    seats = [
        Seat(login, tenant, output / SEEDS / tenant / f"{login.name}.nk")
        for tenant in named or [""]
        for login in logins
    ]
    try:
        written, made = _write(output, form, seats, subjects)
    except OSError as error:
        raise CommandFailed(f"cannot write {error.filename or output}: {error.strerror}") from error
    if as_json:
        print_json(
            {"output": str(output), "files": written, "logins": [_document(seat, seat in made) for seat in seats]}
        )
    else:
        _show(output, written, seats, made)
    return DONE


def _logins(
    app: App | None,
    clients: Sequence[str] | None,
    observers: Sequence[str] | None,
    operators: Sequence[str] | None,
    backups: Sequence[str] | None,
    workers: Sequence[str] | None,
    further_tasks: Iterable[str],
) -> list[Login]:
    from plancast_bus.jetstream.accounts import Login, Role

    tasks = (
        {_login_name(worker.name): tuple(sorted(worker.offered)) for worker in app.workers} if app is not None else {}
    )
    if app is not None and len(tasks) < len(app.workers):
        raise ValueError(f"two workers of {app.name} would get the same login; rename one")
    named_workers = [_worker(each) for each in workers or ()]
    _refuse_repeated("worker", [name for name, _ in named_workers])
    if app is not None:
        _refuse_unknown_tasks(app, named_workers, {*app.tasks, *further_tasks})
    tasks |= dict(named_workers)
    named: list[tuple[Role, Sequence[str]]] = [
        (Role.RUNTIME, ("runtime", "console")),
        (Role.CLIENT, clients or ("client",)),
        (Role.OBSERVER, observers or ("observer",)),
        (Role.OPERATOR, operators or ()),
        (Role.BACKUP, backups or ()),
    ]
    logins = [Login(name, role) for role, names in named for name in names]
    logins += [Login(name, Role.WORKER, its) for name, its in tasks.items() if its]
    _refuse_repeated("login", [login.name for login in logins])
    return logins


def _login_name(worker: str) -> str:
    """Login name of an app's worker, whose own name may be any text."""
    return re.sub(r"[^a-z0-9]+", "-", worker.lower()).strip("-") or "worker"


def _worker(text: str) -> tuple[str, tuple[str, ...]]:
    name, equals, tasks = text.partition("=")
    found = tuple(dict.fromkeys(each.strip() for each in tasks.split(",") if each.strip()))
    if not (equals and found):
        raise ValueError(
            f"--worker {text[:80]!r}: expected a worker and its tasks, as in --worker painter=image.render"
        )
    return name.strip(), found


def _refuse_unknown_tasks(app: App, workers: Iterable[tuple[str, tuple[str, ...]]], known: set[str]) -> None:
    for name, tasks in workers:
        for task in tasks:
            if task not in known:
                close = get_close_matches(task, known, 1)
                raise usage_error(
                    f"--worker {name}: the app {app.name!r} has no task {task!r}",
                    (f"Did you mean {close[0]!r}? " if close else "")
                    + "List tasks of other workers in PLANCAST_WORKERS__TASKS, here and where the app is deployed.",
                )


def _refuse_repeated(what: str, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise usage_error(f"there is more than one {what} named {name!r}")


def _write(output: Path, form: str, seats: Sequence[Seat], subjects: Any) -> tuple[list[str], list[Seat]]:
    """Write everything; return the files, and the logins that got a new key."""
    from plancast_bus.jetstream import accounts

    if output.exists() and not output.is_dir():
        raise usage_error(f"{output} is a file, but --output takes a folder")
    output.mkdir(parents=True, exist_ok=True)
    made = [seat for seat in seats if _make_seed(output, seat)]
    config: dict[str, Any] = {}
    for tenant in dict.fromkeys(seat.tenant for seat in seats):
        its = [seat for seat in seats if seat.tenant == tenant]
        keys = {seat.login.name: _public_key(seat.seed) for seat in its}
        config |= accounts.accounts([seat.login for seat in its], keys, subjects, tenant)
    if form == "helm":
        _replace(output / HELM_ACCOUNTS, _MADE + _text({"config": {"merge": {"accounts": config}}}))
        _replace(output / HELM_SECRETS, _MADE + "---\n".join(_text(_secret(seat)) for seat in seats), mode=0o600)
        return [HELM_ACCOUNTS, HELM_SECRETS], made
    _replace(output / ACCOUNTS, _MADE + "accounts: " + _text(config))
    server = output / SERVER
    if not server.exists():
        _replace(server, accounts.SERVER)
    elif server.read_text(encoding="utf-8") != accounts.SERVER:
        note(f'{server} was changed and is kept; it needs the line: include "{ACCOUNTS}"')
    return [ACCOUNTS, SERVER], made


def _make_seed(output: Path, seat: Seat) -> bool:
    """Create the key of a login unless it has one; return True for a new key."""
    import nkeys

    for folder in (output / SEEDS, seat.seed.parent):
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(0o700)
    try:
        descriptor = os.open(seat.seed, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        if seat.seed.stat().st_mode & 0o077:
            raise CommandFailed(
                f"other users of this machine can read {seat.seed}, so the key may be compromised",
                hint="Remove it and run this again for a new key; or chmod 600 if no other user has read it.",
            ) from None
        return False
    with open(descriptor, "wb") as file:
        file.write(nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER))
    return True


def _public_key(seed: Path) -> str:
    import nkeys

    try:
        public: bytes = nkeys.from_seed(bytearray(seed.read_bytes().strip())).public_key
    except Exception as error:  # of any type; its message could contain the seed
        raise CommandFailed(
            f"{seed} does not contain the seed of an nkey ({type(error).__name__})",
            hint="Remove it and run this again for a new key.",
        ) from None
    return public.decode()


def _secret(seat: Seat) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": seat.secret},
        "stringData": {"user.nk": seat.seed.read_text(encoding="ascii").strip()},
    }


def _text(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"


def _replace(file: Path, text: str, mode: int = 0o644) -> None:
    """Replace a file atomically."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as open_file:
        open_file.write(text)
    draft.replace(file)


def _document(seat: Seat, is_new: bool) -> dict[str, Any]:
    login = seat.login
    return {
        "login": login.name,
        "role": login.role,
        "tenant": seat.tenant or None,
        "tasks": list(login.tasks),
        "seed": str(seat.seed),
        "inbox_prefix": login.inbox,
        "secret": seat.secret,
        "new": is_new,
    }


def _show(output: Path, written: Sequence[str], seats: Sequence[Seat], made: Sequence[Seat]) -> None:
    report_line(f"wrote {', '.join(written)} in {output}; {plural(len(made), 'new key')}", good=True)
    for seat in seats:
        login = seat.login
        about = f" ({', '.join(login.tasks)})" if login.tasks else ""
        print_line(f"{login.role}{about}: PLANCAST_NATS__NKEY={seat.seed} PLANCAST_NATS__INBOX_PREFIX={login.inbox}")
    if 0 < len(made) < len(seats):
        note("a running nats-server needs two reloads: the second one sets up the imports of new accounts")
    known = {seat.seed for seat in seats}
    for seed in sorted((output / SEEDS).rglob("*.nk")):
        if seed not in known:
            note(f"{seed} belongs to no login any more, and its account is not written: add the login, or remove it")
