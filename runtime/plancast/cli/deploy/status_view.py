"""Output of `plancast status`."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from plancast.plan.status import ListedStatus
from plancast.terminal.output import cell, duration, fields, out, plural, status_text, table

_NOT_COLUMNS = frozenset({"name", "alive", "error"})
_MOSTLY_ZERO = frozenset({
    "activations", "cancelled", "crashed", "dead_letters", "dedicated_hosts", "failed_starts", "hosts_lost",
    "passivations", "put_aside", "retried", "restarts", "stalled", "stalls_found", "stands_in_for",
    "stood_in",
})  # fmt: skip


def show_status(document: dict[str, Any], now: float, *, top: bool = False) -> None:
    """Print addresses, plans by status, actors, and on request the busiest plans and tenants."""
    console = out()
    about = fields()
    if document["pid"] is not None:
        uptime = duration(now - document["started_at"])
        about.add_row("running", cell(f"{document['app']} for {uptime} (process {document['pid']})"))
    elif document["actors"] is not None:
        about.add_row("running", cell(f"deployed on {document['ray']}"))
    else:
        about.add_row("running", cell("nothing visible from here", "yellow"))
    about.add_row("namespace", cell(document["namespace"]))
    release = document.get("release")
    if release is not None and release.get("code"):
        age = duration(now - release["deployed_at"])
        about.add_row("release", cell(f"{release['code']}, deployed {age} ago by plancast {release['plancast']}"))
    if document.get("mixed"):
        about.add_row("mixed", cell(document["mixed"], "red"))
    scale = [(kind, each) for kind, each in (document.get("scale") or {}).items() if each["wanted"] != each["actual"]]
    if scale:
        rows = (f"{each['actual']} of {each['wanted']} {kind}" for kind, each in scale)
        about.add_row("scale", cell(f"{', '.join(rows)}: run `plancast scale` or `plancast deploy` again", "yellow"))
    if document.get("overridden"):
        about.add_row("scaled", cell(_overridden(document["overridden"])))
    if document["actors"] is not None and not document["actors"].get("dispatchers"):
        about.add_row("drained", cell("accepts no work until it is deployed again", "yellow"))
    about.add_row("nats", cell(document["nats"] or "–"))
    if document.get("console"):
        about.add_row("console", cell(document["console"]))
    if document["plans"] is not None:
        about.add_row("plans", _counts(document["plans"]))
    if document.get("effects_unknown"):
        undecided = plural(document["effects_unknown"], "plan")
        about.add_row("effects", cell(f"to be decided about in {undecided}: `plancast effects list`", "yellow"))
    console.print(about)
    for kind in ("dispatchers", "hosts", "pools", "dedicated", "workers", "reasoners"):
        actors = (document["actors"] or {}).get(kind)
        if actors:
            console.print()
            _show_actors(kind, actors)
    for kind, found in (document.get("hot") or {}).items() if top else ():
        console.print()
        _show_busiest(kind, found)


def _overridden(numbers: dict[str, dict[str, Any]]) -> str:
    def shown(number: Any) -> str:
        return (
            "unknown"
            if number is None
            else "..".join(map(str, number if isinstance(number, (list, tuple)) else [number]))
        )

    rows = (f"{shown(each['scale'])} {kind} (settings: {shown(each['settings'])})" for kind, each in numbers.items())
    return f"{', '.join(rows)}; `plancast scale --reset` undoes it"


def _show_busiest(kind: str, found: dict[str, Any]) -> None:
    made = table(f"busiest {kind}", "events", right=["events"])
    for name, count in found["busiest"].items():
        made.add_row(cell(name), cell(f"{min(1.0, count / found['sampled']):.0%}"))
    if not found["busiest"]:
        made.add_row(cell("none: one event in 64 is counted", "dim"), cell("–", "dim"))
    out().print(made)


def _counts(plans: dict[str, int]) -> Text:
    known = [status for status in ListedStatus if status in plans]
    if not known:
        return cell("none yet", "dim")
    return Text(", ").join(Text.assemble(f"{plans[each]:,} ", status_text(each)) for each in known)


def _show_actors(kind: str, actors: list[dict[str, Any]]) -> None:
    names = [key for key in dict.fromkeys(key for actor in actors for key in actor) if _worth_showing(key, actors)]
    heads = {key: "up" if key == "up_seconds" else key.replace("_", " ") for key in names}
    made = table(kind, "alive", *heads.values(), right=heads.values())
    for actor in actors:
        alive = cell("yes", "green") if actor.get("alive", True) else cell(f"no ({actor.get('error', '?')})", "red")
        made.add_row(cell(actor.get("name", "?")), alive, *(_value(key, actor.get(key)) for key in names))
    out().print(made)


def _worth_showing(key: str, actors: list[dict[str, Any]]) -> bool:
    """Exclude lists, and counters that are mostly zero; the JSON has them."""
    values = [actor.get(key) for actor in actors]
    if key in _NOT_COLUMNS or any(isinstance(value, (list, dict)) for value in values):
        return False
    return key not in _MOSTLY_ZERO or any(values)


def _value(key: str, value: Any) -> Text:
    if value is None:
        return cell("–", "dim")
    if key == "up_seconds":
        return cell(duration(float(value)), "dim")
    if isinstance(value, float):
        return cell(f"{value:,.1f}")
    return cell(value)
