"""Plans that a model decides, on real Ray, a real nats-server and a real HTTP model server; hosts are killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
import pytest_asyncio
import ray
from nats.js.errors import NotFoundError

from plancast import Client, PlanFailed
from plancast.testing import Answer, ModelRequest, ModelServer
from plancast_actors.deployment.deployment import Deployment
from plancast_actors.deployment.local import LocalRuntime

pytestmark = [pytest.mark.asyncio(loop_scope="session")]
PATIENCE = 90.0
KEY = "sk-very-secret-key"
APP = """
from plancast import App, ChoreographyPlanner, Worker

planner = ChoreographyPlanner(
    "counter",
    "openai/any",
    api_base={url!r},
    api_key="sk-very-secret-key",
    goals=["count.goal"],
    max_actions=6,
    max_repairs=1,
)
worker = Worker("adder")


@worker.on_task(
    "add.requested",
    "add.completed",
    description="Adds one",
    schema={{"type": "object", "properties": {{"n": {{"type": "integer"}}}}, "required": ["n"]}},
)
async def add(task, context):
    return {{"n": task.data["n"] + 1}}


app = App("counting", planners=[planner], workers=[worker])
"""


def decide(request: ModelRequest) -> Any:
    """Counts to three, by what the prompt says; the goals named hopeless and endless are served badly."""
    prompt = "\n".join(str(message["content"]) for message in request.messages)
    if '"hopeless"' in prompt:
        return Answer("I would rather write a poem.")
    if '"endless"' in prompt:
        return publish(0)
    if '"echoing"' in prompt:
        return echo("add.completed" in prompt.partition("Trigger")[2] or '"n": 3' in prompt)
    answers = [int(each) for each in re.findall(r'"n": (\d+)\}, "event": "add\.completed"', prompt)]
    n = max(answers, default=0)
    if n >= 3:
        return Answer.json({"next_action": {"action": "complete", "result": {"n": n}}, "reasoning": "counted"})
    if '"confused"' in prompt and n == 1 and "not in Registry" not in prompt:
        return Answer.json(
            {"next_action": {"action": "publish", "event_type": "substract.requested"}, "reasoning": "?"}
        )
    return publish(n)


def echo(done: bool) -> Answer:
    """Says its key wherever it can, also as JSON escapes."""
    spelled = "".join(f"\\u{ord(each):04x}" for each in KEY)
    if done:
        action: dict[str, Any] = {"action": "complete", "result": {"n": 3, "key": KEY}}
    else:
        action = {"action": "publish", "event_type": "add.requested", "data": {"n": 2, "key": KEY}}
    answer = json.dumps({"next_action": action, "reasoning": f"my key is {KEY}, ESCAPED"}).replace("ESCAPED", spelled)
    return Answer(answer)


def publish(n: int) -> Answer:
    action = {"action": "publish", "event_type": "add.requested", "data": {"n": n}}
    return Answer.json({"next_action": action, "reasoning": f"{n} is not enough", "confidence": 0.9})


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def model() -> AsyncIterator[ModelServer]:
    async with ModelServer(rule=decide, latency=0.05) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def deployed(
    runtime: LocalRuntime, model: ModelServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Deployment, Client]]:
    folder: Path = tmp_path_factory.mktemp("counting")
    (folder / "counting_app.py").write_text(APP.format(url=model.url))
    settings = runtime.settings.model_copy(deep=True)
    settings.ray.namespace, settings.bus.prefix = "counting", "counting"
    deployment = await Deployment.up("counting_app:app", settings, import_paths=[str(folder)])
    client = await Client.connect(runtime.nats_url, settings=settings)
    yield deployment, client
    await client.close()
    await deployment.drain(5)
    await deployment.down()


@pytest.mark.slow
async def test_plans_are_decided_to_their_end_while_hosts_are_killed(
    deployed: tuple[Deployment, Client], model: ModelServer
) -> None:
    deployment, client = deployed
    seed = int(os.environ.get("PLANCAST_TEST_SEED", random.randrange(10**6)))
    print(f"PLANCAST_TEST_SEED={seed}")
    chance = random.Random(seed)
    handles = [await client.submit("count.goal", {"to": 3, "number": n}) for n in range(40)]
    for _ in range(2):
        await asyncio.sleep(chance.random() * 0.5)
        await deployment.kill_host(chance.randrange(2))
    results = await asyncio.gather(*(handle.result(timeout=PATIENCE) for handle in handles))
    assert results == [{"n": 3}] * 40
    history = await handles[0].history()
    decided = [each for entry in history for each in entry.get("decisions", ())]
    assert [each["decision"]["next_action"]["action"] for each in decided] == ["publish"] * 3 + ["complete"]
    assert decided[0]["decision"]["confidence"] == 0.9
    assert decided[0]["calls"][0]["model"]
    # The same decision is asked for once: what was answered before a host died is not paid for again.
    asked = Counter(json.dumps(request.messages, sort_keys=True, default=str) for request in model.requests)
    assert asked.most_common(1)[0][1] == 1


async def test_a_hallucinated_event_is_sent_back_and_never_published(deployed: tuple[Deployment, Client]) -> None:
    _, client = deployed
    handle = await client.submit("count.goal", {"mood": "confused"})
    assert await handle.result(timeout=PATIENCE) == {"n": 3}
    history = await handle.history()
    repaired = [each for entry in history for each in entry.get("decisions", ()) if each["repairs"]]
    assert len(repaired) == 1
    assert "substract" not in json.dumps([entry["sent"] for entry in history])


async def test_a_model_that_never_decides_fails_the_plan_with_the_whole_exchange(
    deployed: tuple[Deployment, Client],
) -> None:
    _, client = deployed
    handle = await client.submit("count.goal", {"mood": "hopeless"})
    with pytest.raises(PlanFailed, match="invalid decision"):
        await handle.result(timeout=PATIENCE)
    history = await handle.history()
    assert "I would rather write a poem." in json.dumps(history[-1]["exchange"])
    assert "sk-very-secret-key" not in json.dumps(history)


@pytest.mark.attack(who="model", what="echo its API key in reasoning, data and result", expected="stored nowhere")
async def test_a_key_that_a_model_echoes_is_stored_nowhere(
    deployed: tuple[Deployment, Client], runtime: LocalRuntime
) -> None:
    _, client = deployed
    handle = await client.submit("count.goal", {"mood": "echoing"})
    assert await handle.result(timeout=PATIENCE) == {"n": 3, "key": "[hidden]"}
    history = json.dumps(await handle.history())
    assert "my key is [hidden], [hidden]" in history

    stored = [message async for message in _stored(runtime.nats_url)]
    assert any("my key is [hidden]" in each for each in stored)  # what is searched can be read
    logs = [file.read_text("latin-1") for file in _ray_logs().rglob("*") if file.is_file()]
    told = [history, json.dumps(await handle.state()), *stored, *logs]
    assert [each[:200] for each in told if KEY in each] == []


async def _stored(url: str) -> AsyncIterator[str]:
    """All messages of all streams, as they rest."""
    connection = await nats.connect(url)
    try:
        stream_api = connection.jetstream()
        for stream in await stream_api.streams_info():
            for sequence in range(max(1, stream.state.first_seq), stream.state.last_seq + 1):
                with contextlib.suppress(NotFoundError):
                    message = await stream_api.get_msg(str(stream.config.name), sequence)
                    yield f"{message.subject} {message.headers} {(message.data or b'').decode('latin-1')}"
    finally:
        await connection.close()


def _ray_logs() -> Path:
    return Path(ray.worker._global_node.get_logs_dir_path())


async def test_a_plan_that_goes_on_for_ever_is_stopped(deployed: tuple[Deployment, Client]) -> None:
    _, client = deployed
    handle = await client.submit("count.goal", {"mood": "endless"})
    with pytest.raises(PlanFailed, match="max_actions"):
        await handle.result(timeout=PATIENCE)
