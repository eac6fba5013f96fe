"""Definitions of state machines: states, transitions, actions, retry policies.

These are plain values; `plancast.state_machine.machine` validates and compiles them.
"""

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from plancast.errors import InvalidStateMachine

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

MAX_PARALLEL: Final = 1_000
"""Most requests of a `for_each` that are open at once."""


class _Definition(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", validate_assignment=True, ser_json_inf_nan="constants", defer_build=True
    )


class RetryPolicy(_Definition):
    """Attempts at an action's request without a response, and the backoff between them."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    attempts: int = Field(default=3, ge=1, le=100)
    """Attempts in all, the first included."""
    backoff_seconds: _Seconds = 1.0
    """Seconds before the second attempt."""
    multiplier: Annotated[float, Field(ge=1, le=100, allow_inf_nan=False)] = 2.0
    """Factor from each wait to the next."""
    max_backoff_seconds: _Seconds = 60.0
    """Longest wait, in seconds."""

    def __init__(self, attempts: int = 3, backoff: float | None = None, **fields: Any) -> None:
        """``RetryPolicy(3, 2.0)``; ``backoff`` is `backoff_seconds`."""
        if backoff is not None:
            if "backoff_seconds" in fields:
                raise ValueError("backoff is backoff_seconds: give one of them")
            fields["backoff_seconds"] = backoff
        super().__init__(**{"attempts": attempts, **fields})

    def delay(self, attempt: int) -> float:
        """Backoff in seconds after attempt number `attempt` (from 1)."""
        if attempt < 1:
            raise ValueError(f"attempts are counted from 1, not {attempt}")
        exponent = min(attempt - 1, 100)
        return min(self.backoff_seconds * self.multiplier**exponent, self.max_backoff_seconds)


class StateAction(_Definition):
    """A request that a plan publishes when it enters a state."""

    event_type: EventType
    """Event type of the request."""
    response_event: EventType
    """Event type of the response."""
    data: dict[str, Any] | None = None
    """The request's data; its strings may hold placeholders, see `docs/concepts/expressions.md`."""
    timeout_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Timeout of the response, in seconds; None: no timeout."""
    retry: RetryPolicy | None = None
    """Retry policy; None: one attempt."""
    for_each: str | None = None
    """A placeholder of a list, such as `{{results.search.hits}}`: a request is sent for each item, which the data names
    as `{{item}}` and `{{index}}` (from 0). When all are answered, the response event comes once, with the answers as a
    list in order. Timeout and retries are those of each request; the first failure that is not retried is that of the
    state."""
    max_parallel: Annotated[int, Field(ge=1, le=MAX_PARALLEL)] | None = None
    """Requests of a `for_each` that are open at once; None: 100."""
    join_timeout_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Timeout of all requests of a `for_each` together, in seconds; None: no timeout."""


class StateTransition(_Definition):
    """A transition from its state to another one, on an event."""

    on_event: EventType
    """Event type of the trigger."""
    to_state: str
    """The next state."""
    condition: str | None = None
    """A CEL expression that must hold, see `docs/concepts/expressions.md`."""


class StateConfig(_Definition):
    """One state of a plan."""

    state_name: str
    """The state's key in the state machine."""
    description: str = ""
    """For people and for models."""
    delay_seconds: _Seconds | None = None
    """Seconds from entering the state until its action is requested, its `default_next` is entered, or its transitions
    take events, which are kept meanwhile; None: at once."""
    action: StateAction | None = None
    """The request on entering the state."""
    transitions: list[StateTransition] = Field(default_factory=list)
    """Tried in this order; the first that matches is taken."""
    default_next: str | None = None
    """The next state without an event: at once if there is neither action nor transition, else on resume."""
    is_terminal: bool = False
    """True when the plan ends in this state."""
    outcome: Literal["completed", "failed", "rolled_back"] | None = None
    """Outcome of a plan that ends here; None: failed if the state is named `failed`, else completed. `rolled_back`
    undoes what its tasks have done, and then fails it."""


StateMachine = dict[str, StateConfig]
"""State name to state. A plan begins in the state `start`."""


def read_states(machine: object, faults: list[str]) -> dict[str, StateConfig]:
    """Validate and copy the states of a machine, given as StateConfig or dict; invalid ones go into `faults`.

    Raises:
        InvalidStateMachine: the machine is no mapping.
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
    """Canonical JSON of the states, independent of their order, without defaults.

    Raises:
        InvalidStateMachine: the data of an action is not JSON.
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
