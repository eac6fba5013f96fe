"""Messages: a notice in the forms of its targets. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from typing import Any, Final

from plancast.notifications.notice import Notice, one_line
from plancast.notifications.targets import Email
from plancast_bus.events.envelope import utc_text

LONGEST_BLOCK: Final = 2_900
"""Characters of a block of Slack, which takes 3,000."""
_ESCAPED: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def webhook_body(notice: Notice, link: str, at: float) -> dict[str, Any]:
    """The body for a webhook: ``type``, ``timestamp`` and ``data``, as Standard Webhooks recommends."""
    data = {
        "plan_id": notice.plan_id,
        "goal": notice.goal,
        "tenant_id": notice.tenant_id,
        "title": notice.title,
        "text": notice.text,
        "data": notice.data,
        "due": notice.due,
        "link": link or None,
    }
    return {"type": f"plan.{notice.kind}", "timestamp": utc_text(at), "data": data}


def slack_body(notice: Notice, link: str) -> dict[str, Any]:
    """The body for an incoming webhook of Slack. No text of a plan is read as markup, nor mentions anybody."""
    title, text, data = (each.translate(_ESCAPED) for each in (notice.title, notice.text, notice.data))
    said = f"*{title}*\n{text}" + (f"\n```{data.replace('`', chr(39))}```" if data else "")
    said += "" if link else f"\n{_instruction(notice)}".translate(_ESCAPED)
    blocks: list[dict[str, Any]] = [{"type": "section", "text": {"type": "mrkdwn", "text": said[:LONGEST_BLOCK]}}]
    if link:
        button = {"type": "button", "text": {"type": "plain_text", "text": "Answer"}, "url": link}
        blocks.append({"type": "actions", "elements": [button]})
    return {"text": title, "blocks": blocks}


def mail(notice: Notice, target: Email, link: str, at: float) -> EmailMessage:
    """The mail to one recipient. A repetition has the same ``Message-ID``."""
    message = EmailMessage(policy=SMTP)
    message["Subject"] = one_line(notice.title)[:200]
    message["From"], message["To"] = target.sender, target.recipients[0]
    message["Date"] = format_datetime(datetime.fromtimestamp(at, UTC))
    message["Message-ID"] = f"<{notice.id}.{target.id}@plancast>"
    message["Auto-Submitted"] = "auto-generated"
    parts = [notice.title, notice.text, notice.data, f"Answer: {link}" if link else _instruction(notice)]
    if notice.due is not None:
        parts.append(f"The plan waits until {utc_text(notice.due)}.")
    message.set_content("\n\n".join(filter(None, parts)).encode("utf-8", "replace").decode() + "\n")
    return message


def _instruction(notice: Notice) -> str:
    match notice.kind:
        case "approval":
            return f"Answer in the console, or with: plancast approvals approve {notice.plan_id}"
        case "effect_unknown":
            return "Resolve it in the console, or with: plancast effects list"
        case _:
            return f"Look at it in the console, or with: plancast plans show {notice.plan_id}"
