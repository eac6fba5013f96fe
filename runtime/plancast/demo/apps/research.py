"""Research: answers a topic with sources from Python's language reference.

    plancast run plancast.demo.apps.research:app
    plancast submit research.goal --data '{"topic": "coroutines"}' --wait

The plan is a state machine: it searches, searches again more broadly after a failure, asks a person when nothing
is found, and analyzes the passages. In `ask_user` it waits for a clarification:

    plancast plans signal PLAN user.clarification.provided --data '{"text": "rich comparison methods"}'

A topic is first used as a full-text query, such as `lambda NOT class` or `"with statement"`. Other text
(`what is a decorator?`) fails there, and the broader search uses its words.
"""

import re
import sqlite3
from functools import cache
from pydoc_data.topics import topics
from typing import Any

from plancast import App, Planner, PlatformContext, StateAction, StateConfig, StateTransition, TaskContext, Worker


def to(states: dict[str, str]) -> list[StateTransition]:
    """Transitions from event types to states."""
    return [StateTransition(on_event=event, to_state=state) for event, state in states.items()]


SEARCH, FOUND = "web.search.requested", "web.search.completed"
TOPIC = {"topic": "{goal_data.topic}", "so_far": "{results}"}
PLAN = [
    StateConfig(state_name="start", default_next="searching"),
    StateConfig(
        state_name="searching",
        action=StateAction(event_type=SEARCH, response_event=FOUND, data=TOPIC),
        transitions=to({FOUND: "analyzing", "web.search.failed": "retry_search", "web.search.no_results": "ask_user"}),
    ),
    StateConfig(
        state_name="retry_search",
        action=StateAction(event_type=SEARCH, response_event=FOUND, data=TOPIC | {"broad": True}),
        transitions=to({FOUND: "analyzing", "web.search.failed": "failed", "web.search.no_results": "ask_user"}),
    ),
    StateConfig(
        state_name="ask_user",
        action=StateAction(
            event_type="notification.human_input",
            response_event="user.clarification.provided",
            data={"question": "Nothing is found about '{goal_data.topic}'. What do you mean by it?"},
        ),
        transitions=to({"user.clarification.provided": "searching"}),
    ),
    StateConfig(
        state_name="analyzing",
        action=StateAction(
            event_type="content.analyze.requested",
            response_event="content.analyze.completed",
            data={"so_far": "{results}"},
        ),
        transitions=to({"content.analyze.completed": "done"}),
    ),
    StateConfig(state_name="done", is_terminal=True),
    StateConfig(state_name="failed", is_terminal=True),
]

planner = Planner("researcher")
planner.add_goal("research.goal", {state.state_name: state for state in PLAN})
planner.expects("user.clarification.provided", "A person's own words for the topic, as text")
search = Worker("search")
analyst = Worker("analyst")

# A sentence worth quoting: no heading, no grammar, no code, and not the history of a feature.
SENTENCE = re.compile(r'(?:^|(?<=\. ))(?!See |Changed |New in |Added )[A-Z"“].{30,}?[\w)"”*]{2}\.(?= |$)')
RANKED = """SELECT topic, heading, text FROM passages WHERE passages MATCH ?
    ORDER BY bm25(passages, 4, 4, 1) + 0.3 * place, rowid LIMIT 8"""


@cache
def corpus() -> sqlite3.Connection:
    """Full-text index of the paragraphs of the language reference, built by the first search."""
    passages: dict[str, tuple[str, str, str, int]] = {}
    for topic in sorted(topics, key=lambda name: (len(topics[name]), name)):
        heading, place = topic, 0
        for block in re.split(r"\n\s*\n", topics[topic]):
            first, _, underline = block.strip().partition("\n")
            text = " ".join(block.split())
            if underline and set(underline) <= set("*=-~^"):
                heading, place = first.replace('"', ""), 0
            elif SENTENCE.match(text):
                passages.setdefault(text, (topic, heading, text, place))
                place += 1
    index = sqlite3.connect(":memory:")
    index.execute("CREATE VIRTUAL TABLE passages USING fts5(topic, heading, text, place UNINDEXED, tokenize=porter)")
    index.executemany("INSERT INTO passages VALUES (?, ?, ?, ?)", passages.values())
    return index


def words(query: str) -> list[str]:
    """The longer words of a query, in the singular."""
    found = re.findall(r"\w{4,}", query.lower()) or re.findall(r"\w+", query.lower())
    if not found:
        raise ValueError(f"{query!r} contains no word to search for")
    return [word.rstrip("s") for word in found if word not in {"what", "when", "does", "mean"}] or found


@search.on_task(SEARCH, FOUND, description="Find passages of the language reference")
async def find(task: TaskContext, context: PlatformContext) -> dict[str, Any] | None:
    """Return the best passages, most relevant first."""
    query = str(task.data["so_far"].get("ask_user", {}).get("text") or task.data["topic"])
    match = " OR ".join(f'"{word}"*' for word in words(query)) if task.data.get("broad") else query
    hits = [
        {"source": f"{topic}: {heading}", "text": text} for topic, heading, text in corpus().execute(RANKED, (match,))
    ]
    if hits:
        return {"query": query, "hits": hits}
    await task.respond_with("web.search.no_results", {"query": query})
    return None


@analyst.on_task("content.analyze.requested", "content.analyze.completed", description="Extract an answer")
async def analyze(task: TaskContext, context: PlatformContext) -> dict[str, Any]:
    """Return the three sentences that mention the query earliest, in the best passages."""
    found = next(result for result in task.data["so_far"].values() if result.get("hits"))
    terms = words(found["query"])
    scored: dict[str, tuple[float, str]] = {}
    for rank, hit in enumerate(found["hits"]):
        for position, text in enumerate(SENTENCE.findall(hit["text"])):
            starts = [text.lower().find(term) for term in terms]
            named = sum(1 - min(start, 100) / 200 for start in starts if start >= 0)
            scored.setdefault(text, (named - 0.05 * position - 0.03 * rank, hit["source"]))
    best = sorted(scored, key=lambda text: -scored[text][0])[:3]
    return {
        "answer": " ".join(best),
        "sentences": [{"text": text, "source": scored[text][1]} for text in best],
        "sources": list(dict.fromkeys(scored[text][1] for text in best)),
    }


app = App("research", planners=[planner], workers=[search, analyst])
