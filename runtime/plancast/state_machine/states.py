"""What a state machine is written in: states, transitions, actions, retries.

The fields are those of seed 001. These are plain values; `plancast.state_machine.machine` checks and runs them.
"""

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from plancast.errors import InvalidStateMachine

__all__ = [
    "EventType",
    "RetryPolicy",
    "StateAction",
    "StateConfig",
    "StateMachine",
    "StateTransition",
    "encode_states",
    "read_states",
]

_EVENT_TYPE = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")


def _event_type(value: str) -> str:
    if _EVENT_TYPE.fullmatch(value) is None:
        raise ValueError(
            "an event type is one or more tokens of letters, digits, '_' and '-', joined by dots, "
            f"like 'web.search.completed'; this is not: {value[:80]!r}"
        )
    return value


EventType = Annotated[str, AfterValidator(_event_type)]
"""The name of an event: dot separated tokens, such as `web.search.completed`. No wildcards."""

_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Definition(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", validate_assignment=True, ser_json_inf_nan="constants", defer_build=True
    )


class RetryPolicy(_Definition):
    """How often an unanswered action is asked again, and how long to wait in between."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    attempts: int = Field(default=3, ge=1, le=100)
    """Tries in all, the first included."""
    backoff_seconds: _Seconds = 1.0
    """Wait before the second try, in seconds."""
    multiplier: Annotated[float, Field(ge=1, le=100, allow_inf_nan=False)] = 2.0
    """By how much each further wait is longer than the one before."""
    max_backoff_seconds: _Seconds = 60.0
    """No wait is longer than this, in seconds."""

    def delay(self, attempt: int) -> float:
        """Seconds to wait after try number `attempt` (from 1) before the next one."""
        if attempt < 1:
            raise ValueError(f"tries are counted from 1, not {attempt}")
        exponent = min(attempt - 1, 100)
        return min(self.backoff_seconds * self.multiplier**exponent, self.max_backoff_seconds)


class StateAction(_Definition):
    """What a plan asks of others when it enters a state."""

    event_type: EventType
    """The request that is published."""
    response_event: EventType
    """The event type that answers it."""
    data: dict[str, Any] | None = None
    """The request's data; strings in it may hold placeholders, see `plancast.state_machine.interpolation`."""
    timeout_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """How long an answer may take, in seconds; None waits for ever."""
    retry: RetryPolicy | None = None
    """Ask again before giving up; None asks once."""


class StateTransition(_Definition):
    """From the state it stands in to another, when an event comes."""

    on_event: EventType
    """The event type that triggers it."""
    to_state: str
    """The state it leads to."""
    condition: str | None = None
    """A CEL expression that must hold too, see `plancast.state_machine.conditions`."""


class StateConfig(_Definition):
    """One state of a plan."""

    state_name: str
    """The same as its key in the state machine."""
    description: str = ""
    """For people and for models."""
    action: StateAction | None = None
    """What is asked of others on entering."""
    transitions: list[StateTransition] = Field(default_factory=list)
    """Ways out, tried in this order; the first one that matches is taken."""
    default_next: str | None = None
    """The way out that needs no event: at once without action and transitions, else on resume."""
    is_terminal: bool = False
    """Whether the plan ends here."""
    outcome: Literal["completed", "failed"] | None = None
    """How a plan that ends here has ended; None: failed if the state is named `failed`, else completed."""


StateMachine = dict[str, StateConfig]
"""A whole machine: state name to state. A plan begins in the state `start`."""


def read_states(machine: object, faults: list[str]) -> dict[str, StateConfig]:
    """The states of a machine that can be read, given as StateConfig or dict, each checked anew and copied.

    What is wrong with the others is added to `faults`. Raises InvalidStateMachine for what is no mapping.
    """
    if not isinstance(machine, Mapping):
        raise InvalidStateMachine([f"it maps state names to states; this is a {type(machine).__name__}"])
    states: dict[str, StateConfig] = {}
    for name, given in machine.items():
        if not isinstance(name, str):
            faults.append(f"a state's name is a string; this is a {type(name).__name__}")
            continue
        try:
            fields = given.model_dump(warnings=False) if isinstance(given, StateConfig) else given
            states[name] = StateConfig.model_validate(fields)
        except ValidationError as error:
            for detail in error.errors(include_input=False, include_url=False):
                where = ".".join(str(part) for part in detail["loc"]) or "it"
                faults.append(f"state {name!r}: {where}: {detail['msg']}")
        except (TypeError, ValueError, RecursionError):
            faults.append(f"state {name!r}: it cannot be read")
    return states


def encode_states(states: Mapping[str, StateConfig]) -> bytes:
    """Canonical JSON of the states: the same however they are ordered, without what is left at its default.

    Raises InvalidStateMachine when the data of an action is not JSON.
    """
    faults: list[str] = []
    content: dict[str, Any] = {}
    for name, state in states.items():
        try:
            content[name] = state.model_dump(mode="json", exclude_defaults=True)
            json.dumps(content[name], allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            faults.append(f"state {name!r}: the data of its action is not JSON")
    if faults:
        raise InvalidStateMachine(faults)
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
