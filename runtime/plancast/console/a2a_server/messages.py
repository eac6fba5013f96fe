"""Messages of clients: the skill that one names, and its data."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from a2a.types import Message, Role
from a2a.utils.errors import ContentTypeNotSupportedError, InvalidParamsError

from plancast.a2a_client.values import JSON, TEXT, from_struct, value_of
from plancast.console.routes.plans import sendable

SKILL: Final = "skill"
"""Key of a message's metadata: the goal that it begins."""
GOAL_TEXT: Final = "text"
"""Field of a goal's data with the text of a message that has no data."""
ANSWER_TEXT: Final = "answer"
"""The same for an answer."""
MAX_ID: Final = 400
"""Longest id of a message, in characters."""


def check_message(message: Message) -> None:
    """Check what all messages have.

    Raises:
        InvalidParamsError: its role is another than the user's, or its id is too long.
    """
    if message.role != Role.ROLE_USER:
        raise InvalidParamsError("message.role: allowed: ROLE_USER")
    if len(message.message_id) > MAX_ID:
        raise InvalidParamsError(f"message.messageId: it has more than {MAX_ID} characters")


def check_modes(accepted: Collection[str]) -> None:
    """Check that a client takes what results are.

    Raises:
        ContentTypeNotSupportedError: it takes neither JSON nor text.
    """
    if accepted and not any(each in ("*/*", "application/*", "text/*", JSON, TEXT) for each in accepted):
        raise ContentTypeNotSupportedError(f"configuration.acceptedOutputModes: allowed: {JSON}, {TEXT}")


def skill_of(message: Message, goals: Collection[str]) -> str:
    """The goal that a message names; the only one there is for a message that names none.

    Raises:
        InvalidParamsError: there is no such goal, or it has to be named.
    """
    skill = from_struct(message.metadata).get(SKILL)
    if skill is None and len(goals) == 1:
        return next(iter(goals))
    if not isinstance(skill, str) or skill not in goals:
        got = "nothing" if skill is None else repr(skill)[:200]
        raise InvalidParamsError(f"message.metadata.{SKILL}: got {got}, allowed: the id of a skill of the agent's card")
    return skill


def data_of(message: Message, text_field: str) -> dict[str, Any]:
    """The data of a message: its data part, or else its text in one field.

    Text beside a data part is for people, and left out.

    Raises:
        ContentTypeNotSupportedError: it has a file.
        InvalidParamsError: its data are no object, or there are several.
        Refused: the data cannot be sent.
    """
    if any(not (part.HasField("data") or part.HasField("text")) for part in message.parts):
        raise ContentTypeNotSupportedError("message.parts: allowed: data, text")
    found = [part for part in message.parts if part.HasField("data") or part.media_type == JSON]
    if len(found) > 1:
        raise InvalidParamsError(f"message.parts: got {len(found)} parts of data, allowed: one")
    if not found:
        return {text_field: "\n".join(part.text for part in message.parts)}
    try:
        data = value_of(found[0])
    except (ValueError, RecursionError) as error:
        raise InvalidParamsError(f"message.parts: the text is no JSON: {error}") from error
    if not isinstance(data, dict):
        raise InvalidParamsError("message.parts: the data part is no object")
    return dict(sendable(data))
