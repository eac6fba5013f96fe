"""The app of W8: an agent's plan that holds a long conversation, and keeps the answer of each of its calls.

A plan of ``w8.keys.goal`` runs by its machine, which has a state for each call: answers are kept under keys of their
own, and the conversation stays in the goal's data. One of ``w8.list.goal`` is moved by a handler, which appends each
answer to the conversation, a list in the plan's results. The workload answers the calls itself.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from plancast import App, PlanContext, Planner, StateAction, StateConfig, StateTransition

GOALS = {"keys": "w8.keys.goal", "list": "w8.list.goal"}
"""Goals by variant: how answers are kept."""
REST = "rest"
"""State after the last call: the final response of a finished plan would hold all results."""
REQUEST, ANSWER = "w8.call.requested", "w8.call.completed"
_COMMON = """the of and to in a is that for it as was with be by on not he his but at are this have from which or had
they you were their been has would what will there if can all her than its who may into more other time about these
some them could so only then out my over two also new first any after most should many people where through must"""
_RARE = """account address agent amount answer approval archive balance branch budget cache carrier change charge check
claim client code column commit condition contract copy currency customer deadline delivery deployment deposit detail
discount document draft email entry error estimate event exchange export failure feature field figure filter folder
forecast format function goal group handler history image import index input inventory invoice issue item journal key
label ledger letter limit line list location manager margin market measure meeting member memory merchant message
method metric minute model module month network notice number object offer office operation option order output owner
package page parcel partner password path patient payment percent period permission person phone plan platform policy
portfolio position price priority process product profile project property proposal provider purchase quality quantity
quarter query question queue rate reason receipt record reference refund region release report request reserve result
return review risk route rule salary sample schedule schema score search section server service session setting share
shipment signal site source stage standard state statement station status step stock storage store stream subject
summary supplier support survey system table target task team template tenant terminal test ticket title token tool
total trace transaction transfer trial unit update upgrade usage user value vendor version volume wallet warehouse
week weight window worker workflow zone"""
COMMON, RARE = _COMMON.split(), _RARE.split()


def _sentence(chance: random.Random) -> str:
    words = [chance.choice(COMMON if chance.random() < 0.5 else RARE) for _ in range(chance.randint(6, 18))]
    if chance.random() < 0.4:
        words[-1] = f"{chance.randint(10, 99_999)}"
    return " ".join(words).capitalize() + ". "


def prose(characters: int, chance: random.Random) -> str:
    """Return English-like text: sentences of common and rare words, numbers, and a record of JSON now and then."""

    def pieces() -> Iterator[str]:
        while True:
            yield _sentence(chance)
            if chance.random() < 0.1:
                record = {
                    "id": f"{chance.getrandbits(64):016x}",
                    chance.choice(RARE): round(chance.uniform(0, 10_000), 2),
                    chance.choice(RARE): [chance.choice(RARE) for _ in range(3)],
                }
                yield json.dumps(record) + " "

    found, size = [], 0
    for piece in pieces():
        found.append(piece)
        size += len(piece)
        if size >= characters:
            return "".join(found)[:characters]
    raise AssertionError("text has no end")


def conversation(characters: int, seed: int = 0) -> list[dict[str, str]]:
    """Return messages of about so many characters together; none repeats another."""
    chance = random.Random(seed)
    found: list[dict[str, str]] = []
    while characters > 0:
        size = min(characters, chance.choice((200, 800, 2_000, 6_000)))
        found.append({"role": ("user", "assistant", "tool")[len(found) % 3], "content": prose(size, chance)})
        characters -= size
    return found


def call(name: str, data: Any, *transitions: StateTransition) -> StateConfig:
    """Build a state that makes a call."""
    action = StateAction(event_type=REQUEST, response_event=ANSWER, data=data)
    return StateConfig(state_name=name, action=action, transitions=list(transitions))


def chain(calls: int) -> dict[str, StateConfig]:
    """Build a machine with a state for each call, numbered from 1."""
    names = [f"call-{number}" for number in range(1, calls + 1)]
    states = [
        call(name, {"number": number}, StateTransition(on_event=ANSWER, to_state=following))
        for number, (name, following) in enumerate(zip(names, (*names[1:], REST), strict=True), 1)
    ]
    return {each.state_name: each for each in (*_ends(names[0]), *states)}


def loop() -> dict[str, StateConfig]:
    """Build a machine with one state, which calls until the answer is the last one."""
    last = StateTransition(on_event=ANSWER, to_state=REST, condition="event.data.last")
    again = StateTransition(on_event=ANSWER, to_state="call", condition="!event.data.last")
    state = call("call", {"number": "{{results.number}}"}, last, again)
    return {each.state_name: each for each in (*_ends("call"), state)}


def _ends(first: str) -> tuple[StateConfig, StateConfig, StateConfig]:
    start = StateConfig(state_name="start", default_next=first)
    rest = StateConfig(state_name=REST, transitions=[StateTransition(on_event="w8.ended", to_state="done")])
    return start, rest, StateConfig(state_name="done", is_terminal=True)


keeper = Planner("w8-keys")
appender = Planner("w8-list")


@keeper.on_goal(GOALS["keys"])
async def begin_keys(goal: Any, context: Any) -> None:
    """Begin a plan that keeps answers under keys of their own."""
    plan = await PlanContext.create_from_goal(goal, chain(goal.data["calls"]))
    await plan.save()
    await plan.execute_next()


@appender.on_goal(GOALS["list"])
async def begin_list(goal: Any, context: Any) -> None:
    """Begin a plan that appends answers to its conversation."""
    plan = await PlanContext.create_from_goal(goal, loop())
    plan.results["conversation"] = list(goal.data["conversation"])
    plan.goal_data = {"calls": goal.data["calls"]}
    plan.results["number"] = 1
    await plan.save()
    await plan.execute_next()


@appender.on_transition()
async def append(transition: Any, context: Any) -> None:
    """Append the answer to the conversation, and make the next call."""
    plan = transition.plan
    plan.results["conversation"].append({"role": "tool", "content": transition.data["text"]})
    plan.results["number"] += 1
    await plan.execute_next(trigger_event=transition.event)
    plan.results.pop("call", None)  # it is in the conversation


app = App("w8", planners=[keeper, appender])
