"""The README's first example is what it says it is: short, valid, and it runs."""

from __future__ import annotations

import re
from pathlib import Path

from plancast import App
from plancast.testing import PlancastTest

README = (Path(__file__).parent.parent / "README.md").read_text()


async def test_the_first_example_runs() -> None:
    code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]
    names: dict[str, object] = {}
    exec(code, names)
    app = names["app"]
    assert isinstance(app, App)
    assert len([line for line in code.splitlines() if line.strip()]) <= 25
    async with PlancastTest(app) as env:
        handle = await env.submit("greet.goal", {"name": "Ada"})
        assert await handle.result(timeout=20) == {"greeting": {"greeting": "Hello, Ada!"}}
