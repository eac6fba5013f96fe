"""Feedback: fetch, analyze and report on `data/feedback.csv`; a model decides each step.

    export OPENAI_API_KEY=...                       # or another FEEDBACK_MODEL, with its provider's key
    plancast run plancast.demo.apps.feedback:app
    plancast submit feedback.goal --data '{"product": "headphones"}' --wait

The steps are not wired together: the model sees the schemas of the workers' tasks. `plancast demo feedback` needs no
key. Events carry ids of entries only, so that neither prompts nor events contain the file.
"""

import csv
import os
from pathlib import Path
from statistics import mean
from typing import Any

from pydantic import BaseModel

from plancast import App, ChoreographyPlanner, TaskContext, Worker

with Path(__file__).with_name("data").joinpath("feedback.csv").open(newline="", encoding="utf-8") as file:
    ENTRIES = {row["id"]: row for row in csv.DictReader(file)}
THEMES = {
    "battery": ("battery", "charg"), "sound": ("sound", "bass", "noise", "loud", "quiet"), "microphone": ("mic",),
    "comfort": ("comfort", "ears", "tight"), "light": ("light", "flicker"), "price": ("price", "expensive", "dollars"),
    "build": ("broke", "leak", "loose", "sturdy", "cheap"), "delivery": ("deliver", "arrived"), "support": ("support",),
}  # fmt: skip

RULES = """Fetch the feedback on the goal's product, analyze the entries that were fetched, then have the analysis
reported; hand each answer on as it is. Complete with {"product": ..., "report": the markdown of the report}. If there
is no feedback on the product, complete with the reason no_path and say what there is feedback on."""
planner = ChoreographyPlanner(
    "feedback", os.environ.get("FEEDBACK_MODEL", "gpt-4o"), goals=["feedback.goal"], temperature=None,
    system_instructions=RULES,
)  # fmt: skip
worker = Worker("feedback-desk")


class Fetch(BaseModel):
    product: str


class Analyze(BaseModel):
    entries: list[str]


class Report(BaseModel):
    product: str
    analysis: dict[str, Any]


@worker.on_task("feedback.fetch.requested", "feedback.fetch.completed", description="Ids of entries", schema=Fetch)
async def fetch(task: TaskContext, context: Any) -> dict[str, Any]:
    found = [key for key, row in ENTRIES.items() if row["product"] == task.data["product"]]
    if not found:
        raise ValueError(f"no feedback; there is some on {', '.join(sorted({r['product'] for r in ENTRIES.values()}))}")
    return {"entries": found, "first": ENTRIES[found[0]]["date"], "last": ENTRIES[found[-1]]["date"]}


@worker.on_task("feedback.analyze.requested", "feedback.analyze.completed", description="Themes", schema=Analyze)
async def analyze(task: TaskContext, context: Any) -> dict[str, Any]:
    rows = [ENTRIES[key] for key in task.data["entries"]]
    themes = {}
    for theme, words in THEMES.items():
        if ratings := [int(row["rating"]) for row in rows if any(word in row["comment"].lower() for word in words)]:
            themes[theme] = {"mentions": len(ratings), "average": round(mean(ratings), 1)}
    worst = min(rows, key=lambda row: int(row["rating"]))
    average = round(mean(int(row["rating"]) for row in rows), 2)
    return {"entries": len(rows), "average": average, "themes": themes, "worst": worst["comment"]}


@worker.on_task("feedback.report.requested", "feedback.report.completed", description="As markdown", schema=Report)
async def report(task: TaskContext, context: Any) -> dict[str, Any]:
    found = task.data["analysis"]
    ranked = sorted(found["themes"].items(), key=lambda each: each[1]["average"])
    lines = [f"- {theme}: {said['average']} of 5, in {said['mentions']} of them" for theme, said in ranked]
    head = f"# {task.data['product']}: {found['average']} of 5 in {found['entries']} entries"
    return {"markdown": "\n".join([head, "", *lines, "", f"> {found['worst']}"])}


app = App("feedback", planners=[planner], workers=[worker])
