"""Lists and replays messages that could not be processed."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic_core import to_json

from plancast.console.routes.audit import note
from plancast.console.schemas.system import FullLetter, Letter, Letters, Replayed
from plancast.console.service.auth import By
from plancast.console.service.backend import Here
from plancast_bus.errors import InvalidEnvelope
from plancast_bus.event_data import letter_in_full
from plancast_bus.events.codec import load
from plancast_bus.ports.bus import DeadLetter, refuse_replay

Number = Annotated[int, Path(ge=1, le=2**53)]
routes = APIRouter(prefix="/dead-letters", tags=["dead letters"])


@routes.get("", summary="List dead letters")
async def list_letters(
    backend: Here,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    cursor: Annotated[str | None, Query(max_length=16, pattern="^[0-9]+$")] = None,
) -> Letters:
    """The oldest first."""
    behind = int(cursor) if cursor is not None else 0
    items: list[Letter] = []
    more = False
    async for letter in backend.bus.dead_letters.list(after=behind):
        if len(items) == limit:
            more = True
            break
        items.append(Letter.model_validate(_fields(letter)))
    total = await backend.bus.dead_letters.count()
    return Letters(items=items, next=str(items[-1].id) if more else None, total=total)


@routes.get("/{number}", summary="A dead letter")
async def get_letter(backend: Here, number: Number) -> FullLetter:
    """With its payload, and the data of its event in full."""
    letter = await letter_in_full(backend.bus, number)
    payload = {"payload": _decoded(letter), "payload_base64": base64.b64encode(letter.payload).decode()}
    return FullLetter.model_validate(_fields(letter) | payload)


@routes.post("/{number}/replay", status_code=202, summary="Send a dead letter again")
async def replay(backend: Here, by: By, number: Number) -> Replayed:
    """Publishes it as it came, and forgets it here; it comes back if it fails again. 413 when only a part was kept."""
    letter = await backend.bus.dead_letters.get(number)
    refuse_replay(letter, backend.bus.subjects)
    await note(backend, by, "dead letter replayed", f"{number} to {letter.subject}")  # first, or it might be lost
    await backend.bus.dead_letters.replay(number)
    return Replayed(id=number)


def _fields(letter: DeadLetter) -> dict[str, Any]:
    return asdict(letter) | {"id": letter.number, "at": letter.time, "bytes": len(letter.payload)}


def _decoded(letter: DeadLetter) -> Any:
    """The payload as a value or text; None when it is neither. It may be malformed in any way."""
    try:
        value = load(letter.payload, letter.content_type)
        return json.loads(to_json(value, bytes_mode="base64", inf_nan_mode="null"))
    except (InvalidEnvelope, ValueError, RecursionError):  # such as a lone surrogate, which JSON cannot represent
        try:
            return letter.payload.decode()
        except UnicodeDecodeError:
            return None
