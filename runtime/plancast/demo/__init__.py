"""The demo: real plans on real NATS and real Ray, with a plan host killed on the way."""

from __future__ import annotations

__all__ = ["run_demo"]


def run_demo(
    topic: str | None = None,
    plans: int = 40,
    seed: int | None = None,
    kill: bool = True,
    json_output: bool = False,
) -> int:
    """Run the research plans of ``examples/research.py`` on an embedded nats-server and a local Ray.

    Args:
        topic: Ask this one question only, and print its answer.
        plans: How many plans run at once.
        seed: Repeats an earlier run's order of topics.
        kill: Kill a plan host halfway, with SIGKILL.
        json_output: Print one JSON document instead of tables.

    Returns:
        0 when every plan has ended as it should; 1 otherwise.
    """
    import asyncio

    from plancast.demo.session import ask, demonstrate

    if topic is not None:
        return asyncio.run(ask(topic, json_output=json_output))
    return asyncio.run(demonstrate(plans, seed, kill=kill, json_output=json_output))
