"""Draws the pictures of the documentation: `python scripts/pictures.py` writes docs/pictures/*.svg.

Plain SVG without external resources. Colours follow the reader's light or dark mode.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "pictures"

STYLE = """
  text { font: 14px system-ui, sans-serif; fill: #1f2430 }
  .small { font-size: 12px; fill: #5b6273 }
  .bold { font-weight: 600 }
  .room { fill: #f3f5fb; stroke: #c3cae0 }
  .box { fill: #ffffff; stroke: #4a5fc1 }
  .store { fill: #eaf6ee; stroke: #3c8d5a }
  .bad { fill: #fdecec; stroke: #c24343 }
  .way { stroke: #4a5fc1; fill: none; stroke-width: 1.6 }
  .thin { stroke: #8a93ab; fill: none; stroke-dasharray: 4 4 }
  .head { fill: #4a5fc1 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e4e7f0 }
    .small { fill: #a4acc4 }
    .room { fill: #23283a; stroke: #454e6d }
    .box { fill: #2d3450; stroke: #8fa2ff }
    .store { fill: #21382b; stroke: #6cc48d }
    .bad { fill: #43262a; stroke: #ef8080 }
    .way { stroke: #8fa2ff }
    .thin { stroke: #7c86a5 }
    .head { fill: #8fa2ff }
  }
"""


@dataclass
class Picture:
    """Shapes on a sheet; coordinates are pixels from the upper left."""

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def room(self, x: int, y: int, width: int, height: int, name: str) -> None:
        """Draw the frame of a system, such as NATS or Ray."""
        self.parts.append(f'<rect class="room" x="{x}" y="{y}" width="{width}" height="{height}" rx="10"/>')
        self.text(x + 14, y + 22, name, "bold")

    def box(self, x: int, y: int, width: int, height: int, *lines: str, kind: str = "box") -> None:
        """Draw a box with centred text, its name first."""
        self.parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>')
        top = y + height / 2 - (len(lines) - 1) * 9 + 5
        for index, line in enumerate(lines):
            self.text(x + width / 2, top + index * 18, line, "" if index == 0 else "small", middle=True)

    def text(self, x: float, y: float, words: str, kind: str = "", *, middle: bool = False) -> None:
        """Draw text that begins at, or is centred on, a point."""
        anchor = ' text-anchor="middle"' if middle else ""
        name = f' class="{kind}"' if kind else ""
        self.parts.append(f'<text{name} x="{x:g}" y="{y:g}"{anchor}>{escape(words)}</text>')

    def way(
        self, *points: tuple[int, int], words: str = "", at: tuple[int, int] | None = None, thin: bool = False
    ) -> None:
        """Draw an arrow through points, with a label."""
        path = " ".join(f"{'M' if index == 0 else 'L'}{x} {y}" for index, (x, y) in enumerate(points))
        kind = "thin" if thin else "way"
        self.parts.append(f'<path class="{kind}" d="{path}" marker-end="url(#head)"/>')
        if words:
            (x0, y0), (x1, y1) = points[0], points[-1]
            x, y = at or ((x0 + x1) // 2, (y0 + y1) // 2 - 7)
            self.text(x, y, words, "small", middle=True)

    def svg(self) -> str:
        """Render the document."""
        head = (
            '<marker id="head" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto">'
            '<path class="head" d="M0 0 L9 4 L0 8 z"/></marker>'
        )
        body = "\n  ".join(self.parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img" '
            f'aria-label="{escape(self.title)}">\n<title>{escape(self.title)}</title>\n<style>{STYLE}</style>\n'
            f"<defs>{head}</defs>\n  {body}\n</svg>\n"
        )


def way_of_an_event() -> Picture:
    """Draw an event from a publisher to a committed turn and back."""
    p = Picture(860, 330, "The way of an event: publisher, stream, dispatcher, host, commit, effects")
    p.room(190, 20, 230, 290, "NATS JetStream")
    p.room(480, 20, 360, 290, "Ray")
    p.box(20, 70, 120, 50, "client", "submits a goal")
    p.box(20, 220, 120, 50, "worker", "answers")
    p.box(210, 70, 190, 50, "requests, results", "streams, in shards")
    p.box(210, 150, 190, 50, "checkpoints", "one for each plan", kind="store")
    p.box(210, 240, 190, 50, "requests, responses", "effects of turns")
    p.box(500, 70, 120, 50, "dispatcher", "by correlation id")
    p.box(690, 60, 130, 70, "plan host", "many plan actors")
    p.box(690, 180, 130, 60, "a turn", "one event, one plan")
    p.way((140, 95), (208, 95), words="publish")
    p.way((400, 95), (498, 95), words="batches")
    p.way((620, 95), (688, 95), words="1")
    p.way((755, 130), (755, 178), words="2 turn", at=(782, 160))
    p.way((690, 200), (404, 178), words="3 commit", at=(560, 180))
    p.way((690, 228), (404, 262), words="4 emit", at=(560, 262))
    p.way((208, 262), (142, 246), words="task", at=(174, 244))
    p.way((80, 218), (80, 140), (160, 140), (208, 108), words="answer", at=(112, 158))
    p.way((560, 68), (560, 48), (305, 48), (305, 68), words="5 acknowledge", at=(440, 60), thin=True)
    return p


def plan_turn_checkpoint() -> Picture:
    """Draw what a turn reads, stages and commits."""
    p = Picture(860, 280, "A turn reads the checkpoint, stages effects, commits both at once, then emits")
    p.box(20, 84, 130, 72, "checkpoint 7", "state, results,", "ids of events", kind="store")
    p.box(200, 20, 120, 46, "event", "an answer came")
    p.room(200, 96, 330, 146, "")
    p.text(365, 228, "turn 8: nothing is visible outside", "bold", middle=True)
    p.box(220, 124, 130, 80, "handle", "machine, planner,", "or your handler")
    p.box(380, 124, 130, 80, "stage", "requests, timers,", "children, response")
    p.box(590, 90, 130, 60, "checkpoint 8", "+ staged effects", kind="store")
    p.box(740, 180, 100, 50, "the world", "sees effects")
    p.way((150, 120), (198, 140))
    p.way((260, 66), (260, 122))
    p.way((350, 164), (378, 164))
    p.way((510, 150), (588, 122), words="one compare-", at=(566, 72))
    p.text(566, 86, "and-set", "small", middle=True)
    p.way((690, 150), (738, 198), words="emit", at=(694, 186))
    p.text(
        20,
        266,
        "A crash before the commit: turn 8 never happened. After it: the outbox is sent again, with the same ids.",
        "small",
    )
    return p


def decision_loop() -> Picture:
    """Draw the input of a deciding planner, and the path of its decision."""
    p = Picture(860, 270, "The decision loop: view, decide, check, execute, wait, and again")
    p.box(20, 100, 140, 64, "RunContext", "goal, results, events,", "budget, tasks")
    p.box(220, 100, 140, 64, "planner.next(run)", "model, tree,", "or your own")
    p.box(420, 100, 130, 64, "check", "events exist, data", "fits, within budget")
    p.box(610, 100, 120, 64, "execute", "publish, wait,", "delegate, …")
    p.box(610, 208, 120, 46, "complete", "the plan ends")
    p.box(400, 10, 350, 46, "commit, and wait for answers, people, timers", kind="store")
    p.way((160, 132), (218, 132))
    p.way((360, 132), (418, 132), words="decision", at=(389, 122))
    p.way((550, 132), (608, 132), words="valid", at=(579, 122))
    p.way((670, 164), (670, 206))
    p.way((670, 100), (670, 58))
    p.way((400, 33), (90, 33), (90, 98), words="the next event", at=(250, 25))
    p.way(
        (485, 164),
        (485, 230),
        (290, 230),
        (290, 166),
        words="a fault: asked again, told exactly what is wrong",
        at=(250, 250),
    )
    return p


def tree_of_children() -> Picture:
    """Draw a plan, its children and its tasks."""
    p = Picture(860, 280, "A plan with child plans and tasks; a cancel goes down, results come up")
    p.box(350, 20, 170, 56, "order A-1", "planner: orders")
    p.box(100, 120, 170, 56, "compliance.check", "child plan")
    p.box(350, 120, 170, 56, "group: quotes", "join: first success")
    p.box(600, 120, 170, 56, "approval.decided", "waits for a person")
    p.box(100, 216, 170, 46, "screening.requested", "task of a worker")
    p.box(300, 216, 120, 46, "quote.a", "task", kind="store")
    p.box(450, 216, 120, 46, "quote.b", "cancelled", kind="bad")
    p.way((400, 76), (190, 118), words="delegate", at=(270, 92))
    p.way((435, 76), (435, 118), words="parallel", at=(465, 100))
    p.way((480, 76), (680, 118), words="wait", at=(600, 92))
    p.way((185, 176), (185, 214))
    p.way((410, 176), (365, 214))
    p.way((460, 176), (505, 214))
    p.text(600, 235, "Same session, tenant and user.", "small")
    p.text(600, 253, "A cancel goes down, results come up.", "small")
    return p


def crash_and_recovery() -> Picture:
    """Draw a host crash: the checkpoint and the unacknowledged event are enough to recover."""
    p = Picture(
        860, 250, "A host dies in a turn: the event was not acknowledged, the checkpoint is there, another host goes on"
    )
    p.box(20, 30, 150, 56, "event 8", "handed over")
    p.box(240, 30, 150, 56, "host-0", "takes turn 8")
    p.box(460, 30, 150, 56, "kill -9", "memory is gone", kind="bad")
    p.box(240, 150, 150, 60, "checkpoint 7", "in JetStream", kind="store")
    p.box(460, 150, 150, 60, "event 8", "not acknowledged", kind="store")
    p.box(690, 84, 150, 76, "host-0, restarted", "activates the plan,", "takes turn 8 again")
    p.way((170, 58), (238, 58))
    p.way((390, 58), (458, 58))
    p.way((610, 70), (688, 104), words="seconds", at=(664, 78))
    p.way((390, 196), (424, 226), (765, 226), (765, 162), words="state", at=(600, 242))
    p.way((610, 172), (688, 140), words="again", at=(648, 176))
    return p


PICTURES: dict[str, Callable[[], Picture]] = {
    "way-of-an-event.svg": way_of_an_event,
    "plan-turn-checkpoint.svg": plan_turn_checkpoint,
    "decision-loop.svg": decision_loop,
    "tree-of-children.svg": tree_of_children,
    "crash-and-recovery.svg": crash_and_recovery,
}


def main() -> None:
    """Write all pictures."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
