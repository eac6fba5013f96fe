"""Pages of links that answer what a plan waits for: a GET shows it, a POST answers it."""

from __future__ import annotations

import logging
import time
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from plancast.console.routes.plan_actions import answer
from plancast.console.schemas.plan_actions import AnswerOf
from plancast.console.service.backend import Backend, Here
from plancast.console.views.link_page import asking_page, text_page
from plancast.errors import InvalidAnswer, NotAwaited, PlanFinished, PlanNotFound
from plancast.notifications.link import PATH, ExpiredLink, InvalidLink, Link, link_seals, read_link
from plancast.plan_store.approvals import Approval, approval_of
from plancast_bus.errors import BusError

logger = logging.getLogger(__name__)
routes = APIRouter(include_in_schema=False)
MOST_BYTES = 16_384
"""Largest form."""
LONGEST_REASON = 1_000
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Robots-Tag": "noindex",
    # A browser that may send no referrer sends the origin "null" with the form, too.
    "Referrer-Policy": "same-origin",
}


@routes.api_route(PATH + "{token}", methods=["GET", "HEAD"])
async def show(backend: Here, token: str) -> HTMLResponse:
    """Changes nothing: programs that look at mails follow links."""
    try:
        link = await _link(backend, token)
        plan = (await backend.checkpoint(link.key)).summary
        approval = await _asked(backend, link)
    except Exception as error:
        return _failure(error)
    return _page(asking_page(approval, plan.plan_id, plan.goal_event, link))


@routes.post(PATH + "{token}")
async def answer_by(request: Request, backend: Here, token: str) -> HTMLResponse:
    """Answers once; the same answer is shown to a repetition."""
    try:
        link = await _link(backend, token)
        form = parse_qs(await _form(request), max_num_fields=8)
        says = form.get("answer", [""])[0]
        if says not in ("yes", "no"):
            return _page(text_page("No answer", "Choose one of the buttons."), 422)
        given = AnswerOf(reason=form.get("reason", [""])[0].strip()[:LONGEST_REASON], request_id=link.request_id)
        accepted = await answer(backend, link.key, says == "yes", given, link.by, link.event_id)
    except Exception as error:
        return _failure(error)
    if accepted.outcome == "ignored":
        text = "The plan did not take it: it was answered before, or this recipient may not answer. See the console."
        return _page(text_page("Not taken", text), 409)
    return _page(text_page("Thank you", "Your answer has reached the plan. This link has been used."))


async def _link(backend: Backend, token: str) -> Link:
    seals = link_seals(backend.settings.console, backend.bus.seals)
    await seals.prepare()
    return read_link(token, seals, time.time())


async def _asked(backend: Backend, link: Link) -> Approval:
    state = await backend.state(await backend.checkpoint(link.key))
    approval = approval_of(state, await backend.registry.human_events())
    if approval is None or approval.request_id != link.request_id:
        raise NotAwaited("what this link answers is not asked any more")
    return approval


async def _form(request: Request) -> str:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            raise ValueError("the form is too large")
    return body.decode("utf-8", "replace")


def _failure(error: Exception) -> HTMLResponse:
    match error:
        case InvalidLink():
            return _page(text_page("No such link", "This link was not made here, or is incomplete."), 404)
        case ExpiredLink():
            return _page(text_page("Expired", "This link has expired. Answer in the console."), 410)
        case NotAwaited() | PlanFinished() | PlanNotFound():
            text = "This was answered already, or is not asked any more. The link answers nothing else."
            return _page(text_page("Nothing to answer", text), 410)
        case InvalidAnswer():
            text = f"This answer needs more than a link can give: {'; '.join(error.faults)}. Answer in the console."
            return _page(text_page("Not enough", text), 422)
        case ValueError():
            return _page(text_page("Not understood", "The form cannot be read."), 400)
        case BusError():
            logger.warning("a link cannot be used now: %s", error)
            text = "Your answer may have arrived or not. Open the link again in a minute."
            return _page(text_page("Not available", text), 503)
        case _:
            raise error


def _page(html: str, status: int = 200) -> HTMLResponse:
    return HTMLResponse(html, status, _HEADERS)
