"""Pages of links that answer, as HTML without scripts. All that comes from plans is escaped."""

from __future__ import annotations

from html import escape
from typing import Final

from plancast.json_values.abbreviate import to_json_within
from plancast.notifications.link import Link
from plancast.plan_store.approvals import Approval

LONGEST_DATA: Final = 4_000
_FRAME: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta name="robots" content="noindex"><title>{title}</title><style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 40rem; margin: 2rem auto; padding: 0 1rem; color: #1b1f24 }}
pre {{ background: #f3f4f6; padding: .75rem; overflow: auto; white-space: pre-wrap; overflow-wrap: anywhere }}
button, input {{ font: inherit; padding: .5rem 1rem; margin: .25rem .5rem .25rem 0 }}
small {{ color: #57606a }}
</style></head><body><h1>{title}</h1>
{body}
</body></html>
"""


def asking_page(approval: Approval, plan_id: str, goal: str, link: Link) -> str:
    """The page that shows what is asked, with a button for each answer that the plan hears."""
    data = f"<pre>{escape(to_json_within(approval.payload, LONGEST_DATA))}</pre>" if approval.payload else ""
    no = '<button name="answer" value="no">Reject</button>' if approval.can_refuse else ""
    body = f"""<p>{escape(approval.reason)}</p>
{data}
<form method="post">
<p><label>Reason (may be empty)<br><input name="reason" maxlength="1000" size="40" autocomplete="off"></label></p>
<p><button name="answer" value="yes">Approve</button>{no}</p>
</form>
<p><small>Plan {escape(plan_id)}, goal {escape(goal)}. The history will say {escape(link.by)}.</small></p>"""
    return _FRAME.format(title="Please decide", body=body)


def text_page(title: str, text: str) -> str:
    """A page that says one thing."""
    return _FRAME.format(title=escape(title), body=f"<p>{escape(text)}</p>")
