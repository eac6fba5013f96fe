"""Decisions of planners: the model, its checks, and the parser for a model's answer."""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Final, Self
from weakref import WeakValueDictionary

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from plancast.decisions.actions import (
    STORED,
    AwaitAction,
    CompleteAction,
    DelegateAction,
    ParallelAction,
    PlanAction,
    PlannerAction,
    PublishAction,
    WaitAction,
)
from plancast.errors import InvalidDecision
from plancast.json_values.limits import DATA_BOUNDS, PAUSE_BOUNDS, at, check_payload, freeze, shown
from plancast.json_values.model import NullIsDefault, PlannerValue
from plancast.json_values.model_text import object_in_text
from plancast.tasks.spec import SpawnSpec

MAX_DECISION_BYTES: Final = 512 * 1024
"""Largest decision, in bytes of JSON: it is committed with the plan, whose checkpoint is limited to 1 MiB."""

_MAX_FAULTS: Final = 20
_ALTERNATIVES: Final = "alternative_actions"
_ACTIONS: Final[dict[str, type[PlannerValue]]] = {
    PlanAction.PUBLISH: PublishAction,
    PlanAction.COMPLETE: CompleteAction,
    PlanAction.WAIT: WaitAction,
    PlanAction.DELEGATE: DelegateAction,
    PlanAction.PARALLEL: ParallelAction,
    PlanAction.AWAIT: AwaitAction,
}
_NESTED: Final[dict[str, type[PlannerValue]]] = {"branches": PublishAction, "spec": SpawnSpec}
_BOUNDS: Final = dict.fromkeys(("data", "goal_data", "result", "metadata"), DATA_BOUNDS) | {"payload": PAUSE_BOUNDS}
_NO_REASONING: Final = "reasoning: got nothing, allowed: a text here or in next_action; it is required in one of them"


class PlannerDecision(PlannerValue):
    """A decision on the next step of a plan."""

    model_config: ClassVar[ConfigDict] = ConfigDict(title="Planner Decision")

    _wanted: ClassVar = ("reasoning",)

    plan_id: Annotated[str, NullIsDefault] = ""
    """The plan; may be left out."""
    current_state: Annotated[str, NullIsDefault] = ""
    """Where the plan stands; may be left out."""
    next_action: PlannerAction
    """What to do next."""
    alternative_actions: Annotated[list[PlannerAction] | None, AfterValidator(freeze)] = None
    """What else was considered; never acted on."""
    confidence: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Confidence in the decision, 0 to 1."""
    reasoning: Annotated[str, NullIsDefault] = ""
    """Why this is the best next step."""

    @model_validator(mode="after")
    def _has_reasoning(self) -> Self:
        if not _reasoned(self.reasoning, self.next_action):
            raise ValueError(_NO_REASONING)
        return self


@lru_cache(maxsize=1)
def _response_format() -> dict[str, Any]:
    schema = _any_of(PlannerDecision.model_json_schema())
    return {"type": "json_schema", "json_schema": {"name": "planner_decision", "schema": schema, "strict": False}}


def decision_response_format() -> dict[str, Any]:
    """The `response_format` for an OpenAI-compatible API that is to return a decision.

    `strict` is false: strict mode requires every object's keys to be declared, and the data of events and results is
    free-form. So an answer may still violate the schema, and `parse_decision` checks it. Alternatives are plain
    `anyOf`, which more providers support than `oneOf` with a discriminator. Descriptions are left out: providers count
    the schema's tokens with every request, and prompts describe the actions. The schema is built once.
    """
    return dict(_response_format())


def _any_of(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_any_of(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    union = "oneOf" in schema
    return {
        "anyOf" if key == "oneOf" else key: _any_of(item)
        for key, item in schema.items()
        if not (union and key == "discriminator") and not (key == "description" and isinstance(item, str))
    }


def parse_decision(text: str, *, drop_bad_alternatives: bool = False) -> PlannerDecision:
    """Parse the decision in a model's answer; Markdown fences and prose around the JSON object are skipped.

    Args:
        text: The answer.
        drop_bad_alternatives: Accept a decision whose only faults are in its alternatives, without them.

    Raises:
        InvalidDecision: there is no such object, or not only one, or it is not a decision; each fault names the field,
            the value and the allowed values: `next_action.action: got 'publsh', allowed: publish, complete, ...`.
    """
    try:
        fields = object_in_text(text)
    except ValueError as error:
        raise InvalidDecision(str(error)) from None
    try:
        return _noted(check_decision(fields))
    except InvalidDecision as error:
        if not drop_bad_alternatives or not any(fault.startswith(_ALTERNATIVES) for fault in error.faults):
            raise
    return _noted(check_decision({name: value for name, value in fields.items() if name != _ALTERNATIVES}))


def check_decision(decision: object) -> PlannerDecision:
    """Validate a decision (or its fields), its size limits included.

    Raises:
        InvalidDecision: as in `parse_decision`; also when data is not JSON or exceeds its limits: `PAUSE_BOUNDS` for
            a pause's payload, `DATA_BOUNDS` for everything else.
    """
    if isinstance(decision, PlannerDecision) and is_checked(decision):
        return decision
    try:
        fields = _fields_of(decision) if isinstance(decision, BaseModel) else decision
        checked = PlannerDecision.model_validate(fields)
    except ValidationError as error:
        raise InvalidDecision(_faults(error, fields)) from None
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise InvalidDecision(f"the decision: got what cannot be read ({type(error).__name__})") from error
    faults = list(_overloads("", checked))
    if not faults and (size := len(checked.model_dump_json().encode())) > MAX_DECISION_BYTES:
        faults = [f"the decision: got {size} bytes of JSON, allowed: at most {MAX_DECISION_BYTES}"]
    if faults:
        raise InvalidDecision(faults[:_MAX_FAULTS])
    return _noted(checked) if isinstance(decision, BaseModel) else checked


def _fields_of(decision: BaseModel) -> dict[str, Any]:
    """The fields of a decision, without a confidence that it only has by default."""
    return decision.model_dump(warnings=False, exclude={"confidence"} - decision.model_fields_set)


def stored_decision(fields: Mapping[str, Any]) -> PlannerDecision:
    """Read a decision that was checked and then stored, maybe by an earlier version, which refused less."""
    return _noted(PlannerDecision.model_validate(fields, context=STORED))


_checked: WeakValueDictionary[int, PlannerDecision] = WeakValueDictionary()


def is_checked(decision: PlannerDecision) -> bool:
    """True if `check_decision` has returned this very object; it is deeply read-only, so it is still valid."""
    return _checked.get(id(decision)) is decision


def with_run_fields(decision: PlannerDecision, fields: Mapping[str, Any]) -> PlannerDecision:
    """Copy a decision with fields of its run, which need no check; the copy counts as checked if the decision did."""
    copy = decision.model_copy(update={name: freeze(value) for name, value in fields.items()})
    return _noted(copy) if is_checked(decision) else copy


def _noted(decision: PlannerDecision) -> PlannerDecision:
    _checked[id(decision)] = decision
    return decision


def _overloads(path: str, value: BaseModel) -> Iterator[str]:
    """Yield the faults of all data and texts in a decision, an action or a spec."""
    for name in type(value).model_fields:
        inner, where = getattr(value, name), at(path, name)
        if name in _BOUNDS or isinstance(inner, str):
            try:
                check_payload(inner, where=where, bounds=_BOUNDS.get(name, DATA_BOUNDS))
            except InvalidDecision as error:
                yield from error.faults
        elif isinstance(inner, BaseModel):
            yield from _overloads(where, inner)
        elif isinstance(inner, list):
            for index, item in enumerate(inner):
                yield from _overloads(at(where, index), item)


def _reasoned(top: object, action: object) -> bool:
    def read(name: str) -> object:
        return action.get(name) if isinstance(action, Mapping) else getattr(action, name, None)

    texts = (top, read("reasoning"), read("reason") if read("action") == PlanAction.WAIT else None)
    return any(isinstance(text, str) and text.strip() for text in texts)


# Error texts.

_SHOULD = re.compile(r"^\w+ should (?:be|have) ")
_ENUM = re.compile(r"<\w+\.\w+: ('[^']*')>")


def _faults(error: ValidationError, fields: object) -> list[str]:
    details = error.errors(include_url=False)
    faults = [_fault(detail) for detail in details if detail["type"] != "default_factory_not_called"]
    if isinstance(fields, Mapping) and not _reasoned(fields.get("reasoning"), fields.get("next_action")):
        faults = [fault for fault in faults if fault != _NO_REASONING] + [_NO_REASONING]
    more = len(faults) - _MAX_FAULTS
    return faults if more <= 0 else [*faults[:_MAX_FAULTS], f"and {more} more"]


def _fault(detail: ErrorDetails) -> str:
    path, owner = _placed(detail["loc"])
    kind, got = detail["type"], detail["input"]
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        tag = got.get("action") if isinstance(got, Mapping) else None
        return f"{at(path, 'action')}: got {'nothing' if tag is None else shown(tag)}, allowed: {', '.join(PlanAction)}"
    if kind == "missing":
        meaning = owner.model_fields[str(detail["loc"][-1])].description
        return f"{path}: got nothing, allowed: a value; it is required: {meaning}"
    if kind == "extra_forbidden":
        return f"{path}: got a field that does not exist, allowed: {', '.join(owner.model_fields)}"
    if kind == "value_error":
        text = detail["msg"].removeprefix("Value error, ")
        if text.startswith("got "):
            return f"{path}: {text}"
        return f"{path}.{text}" if path else text  # a model's own check, which names the field
    allowed = _ENUM.sub(r"\1", _SHOULD.sub("", detail["msg"]))
    return f"{path or 'the decision'}: got {shown(got)}, allowed: {allowed}"


def _placed(location: tuple[int | str, ...]) -> tuple[str, type[PlannerValue]]:
    """The path of an error without the union's tags, and the model class that holds its last step."""
    tagged = {"next_action": 1, "alternative_actions": 2}.get(str(location[0]) if location else "", len(location))
    tag, rest = location[tagged : tagged + 1], location[tagged + 1 :]
    path = ""
    for step in (*location[:tagged], *rest):
        path = at(path, step)
    owner: type[PlannerValue] = _ACTIONS[str(tag[0])] if tag and rest else PlannerDecision
    if len(rest) > 1:
        owner = _NESTED.get(str(rest[0]), owner)
    return path, owner
