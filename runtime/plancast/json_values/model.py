"""The pydantic base of values that language models write."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticUseDefault

from plancast.json_values.limits import MAX_SECONDS, freeze
from plancast_bus.subjects import MAX_TYPE


def _null_is_default(value: Any) -> Any:
    if value is None:
        raise PydanticUseDefault
    return value


NullIsDefault = BeforeValidator(_null_is_default)
Text = Annotated[str, NullIsDefault]
Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS)]
Name = Annotated[str, Field(min_length=1, max_length=MAX_TYPE)]
Data = Annotated[dict[str, Any], NullIsDefault, AfterValidator(freeze)]


def _for_models(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Require what a language model should write though a program may omit it; drop titles, which repeat names."""
    for field in schema["properties"].values():
        field.pop("title", None)
    wanted = {"action", *schema.get("required", ()), *getattr(model, "_wanted", ())}
    schema["required"] = [name for name in schema["properties"] if name in wanted]


class PlannerValue(BaseModel):
    """Frozen, without further fields, with its docstrings as descriptions in its JSON Schema."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, json_schema_extra=_for_models
    )
