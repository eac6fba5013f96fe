"""Questions of plans as forms, without a deployment."""

from __future__ import annotations

from tests.runtime.console.service.test_questions import DECIDED, asks

from plancast.console.mcp_server.forms import form_of


def test_a_form_has_the_primitive_properties_and_there_is_none_for_others_that_are_required() -> None:
    nested = {"properties": {"lines": {"type": "array"}, "note": {"type": "string", "x-secret": 1}, "by": {}}}
    form = form_of(asks("order.filled", nested))
    assert form is not None
    assert form.params.requested_schema["properties"] == {"note": {"type": "string"}}
    assert form_of(asks("order.filled", nested | {"required": ["lines"]})) is None
    form = form_of(asks("order.decided", None))
    assert form is not None
    assert form.params.requested_schema["properties"].keys() == {"approved", "reason"}
    assert form.params.message == 'Which?\n{"question": "Which?"}'
    form = form_of(asks("order.decided", DECIDED | {"additionalProperties": False}))
    assert form is not None
    assert form.params.requested_schema["properties"].keys() == {"approved"}
