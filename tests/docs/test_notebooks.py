"""The cells of the page on notebooks run as IPython runs them: in a loop that is running, with await at the top."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import linecache
from typing import Any

import pytest
from tests.docs.blocks import ROOT, Block, blocks_of
from tests.docs.commands import missing_output

BLOCKS = blocks_of(ROOT / "docs" / "how-to" / "notebooks.md")
NEEDS_A_DEPLOYMENT = "Client.connect("
"""In cells that the test of all pages runs against its deployment."""


class Kernel:
    """Runs cells in its own namespace and the running loop."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self._cells = 0

    async def run(self, text: str) -> str:
        """Run a cell; return what it prints."""
        self._cells += 1
        name = f"<ipython-input-{self._cells}>"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        code = compile(text, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            if code.co_flags & inspect.CO_COROUTINE:
                await eval(code, self.names)
            else:
                exec(code, self.names)
        await asyncio.sleep(0)  # the kernel waits for the next cell, and the loop goes on
        return printed.getvalue()


def cells() -> list[tuple[Block, str]]:
    """Each cell, and what the page says it prints."""
    found: list[tuple[Block, str]] = []
    for block in BLOCKS:
        if block.language == "python":
            found.append((block, ""))
        elif block.is_output:
            found[-1] = (found[-1][0], block.text)
    return [(block, expected) for block, expected in found if NEEDS_A_DEPLOYMENT not in block.text]


async def test_the_cells_of_the_page_print_what_it_says_in_a_loop_that_runs() -> None:
    kernel = Kernel()
    for block, expected in cells():
        printed = await kernel.run(block.text)
        assert missing_output(expected.splitlines(), printed) is None, f"{block.place}:\n{printed}"
    assert sum(bool(expected) for _, expected in cells()) >= 3


async def test_asyncio_run_fails_in_a_cell_as_the_page_says() -> None:
    page = (ROOT / "docs" / "how-to" / "notebooks.md").read_text()
    with pytest.raises(RuntimeError) as raised:
        await Kernel().run(
            "import asyncio\nwork = asyncio.sleep(0)\ntry:\n    asyncio.run(work)\nfinally:\n    work.close()"
        )
    assert f"RuntimeError: {raised.value}" in page


async def test_plans_move_between_cells_and_cells_may_be_run_again() -> None:
    kernel = Kernel()
    first = cells()[0][0].text
    await kernel.run(first)
    await kernel.run(first)
    await kernel.run(
        "env = PlancastTest(app)\nawait env.__aenter__()\nplan = await env.submit('greet.goal', {'name': 'Ada'})"
    )
    async with asyncio.timeout(30):
        while str(await kernel.names["plan"].status()) != "completed":
            await asyncio.sleep(0.01)
    await kernel.run("await env.__aexit__(None, None, None)")
