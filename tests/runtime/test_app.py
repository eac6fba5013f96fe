"""Apps: every fault in how an app is put together is reported at once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from plancast import App, ChoreographyPlanner, Effect, InvalidApp, Planner, StateAction, StateConfig, Worker
from plancast.app import load_app
from plancast.planners import DeterministicPlanner, SpawnAndAwaitStep, SpawnSpec, TaskRegistry

DONE = StateConfig(state_name="done", is_terminal=True)
FINE = {"start": StateConfig(state_name="start", default_next="done"), "done": DONE}


def a_planner(name: str, *goals: str) -> Planner:
    planner = Planner(name)
    for goal in goals:
        planner.add_goal(goal, FINE)
    return planner


def a_worker(name: str, *tasks: str) -> Worker:
    worker = Worker(name)
    for task in tasks:
        worker.on_task(task)(lambda task, context: None)
    return worker


class TestPuttingTogether:
    def test_goals_and_tasks_are_found(self) -> None:
        planner, worker = a_planner("p", "g"), a_worker("w", "t")
        app = App("app", planners=[planner], workers=[worker])
        assert app.goals == {"g": planner}
        assert app.tasks["t"][0] is worker
        assert app.planner("p") is planner
        assert app.planner("q") is None
        app.validate()

    def test_undos_are_no_tasks_of_their_own(self) -> None:
        worker = Worker("bank")
        worker.on_task("card.charge", effect=Effect())(lambda task, context: None)
        worker.compensate("card.charge")(lambda task, result, context: None)
        app = App("app", workers=[worker])
        assert list(app.tasks) == list(worker.offered) == ["card.charge"]
        app.validate()

    def test_look_ups_and_undos_with_other_parameters_are_refused(self) -> None:
        worker = Worker("bank")
        worker.on_task("card.charge", effect=Effect())(lambda task, context: None)
        worker.reconcile("card.charge")(lambda task: None)
        worker.compensate("card.charge")(lambda task, context: None)
        with pytest.raises(InvalidApp) as caught:
            App("app", workers=[worker]).validate()
        assert "look-up of task 'card.charge'" in str(caught.value)
        assert "handler of task 'card.charge.undo'" in str(caught.value)

    def test_goals_given_later_count(self) -> None:
        planner = a_planner("p")
        app = App("app", planners=[planner])
        planner.add_goal("late", FINE)
        assert app.goals == {"late": planner}

    def test_every_conflict_is_named(self) -> None:
        with pytest.raises(InvalidApp) as caught:
            App(
                "app",
                planners=[a_planner("p", "g", "t"), a_planner("p", "g")],
                workers=[a_worker("w", "t"), a_worker("w", "u"), a_worker("v", "u")],
            )
        said = str(caught.value)
        for fault in ("planners are named 'p'", "workers are named 'w'", "goal 'g'", "'t' is a goal", "task 'u'"):
            assert fault in said

    def test_validate_refuses_a_tree_with_tasks_of_its_own(self) -> None:
        step = SpawnAndAwaitStep(lambda run: SpawnSpec(event_type="t"), lambda run, done: None)
        mine = DeterministicPlanner([step], name="mine", goals=["g"], registry=TaskRegistry())
        wrapped, fine = Planner("wrapped"), DeterministicPlanner([step], name="fine", goals=["i"])
        wrapped.add_goal("h", decided_by=DeterministicPlanner([step], name="other", registry=TaskRegistry()))
        app = App("app", planners=[mine, wrapped, fine])
        with pytest.raises(InvalidApp) as caught:
            app.validate()
        said = str(caught.value)
        for name in ("mine", "other"):
            assert f"planner {name!r}: its registry of tasks is in the memory of one process" in said
        assert said.count("leave registry out") == 2

    def test_validate_names_every_fault_of_every_machine(self) -> None:
        planner, other = Planner("p"), Planner("q")
        planner.add_goal("one", {"start": StateConfig(state_name="start", default_next="nowhere")})
        asks = StateAction(event_type="a.requested", response_event="a.completed", data={"x": "{{nonsense.x}}"})
        other.add_goal("two", {"start": StateConfig(state_name="start", action=asks), "lost": DONE})
        app = App("app", planners=[planner, other])
        with pytest.raises(InvalidApp) as caught:
            app.validate()
        said = str(caught.value)
        for fault in (
            "planner 'p', goal 'one'",
            "nowhere",
            "planner 'q', goal 'two'",
            "nonsense",
            "'lost'",
            "dead end",
        ):
            assert fault in said

    def test_validate_sees_goals_given_later(self) -> None:
        planners = [a_planner("p", "g"), a_planner("q")]
        app = App("app", planners=planners)
        planners[1].add_goal("g", FINE)
        with pytest.raises(InvalidApp, match="'g'"):
            app.validate()


class TestLoading:
    @pytest.fixture(autouse=True)
    def _here(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [*sys.path])
        before = set(sys.modules)
        (tmp_path / "loadable.py").write_text(
            "from plancast import App\napp = App('loaded')\nnumber = 5\nclass Holder:\n    app = app\n"
        )
        (tmp_path / "needy.py").write_text("import nee\n")
        (tmp_path / "broken.py").write_text("raise RuntimeError('on import')\n")
        yield
        for name in set(sys.modules) - before:
            del sys.modules[name]

    def test_an_app_is_found_in_the_working_directory(self) -> None:
        assert load_app("loadable:app").name == "loaded"
        assert load_app("loadable:Holder.app").name == "loaded"

    @pytest.mark.parametrize("address", ["", "loadable", "loadable:", ":app", ".loadable:app"])
    def test_a_malformed_address_is_explained(self, address: str) -> None:
        with pytest.raises(InvalidApp, match="MODULE:ATTRIBUTE"):
            load_app(address)

    @pytest.mark.parametrize(
        ("address", "said"),
        [
            ("loadable:nothing", "is nothing, not a plancast.App"),
            ("loadable:number", "is a int, not a plancast.App"),
            ("no_such_module:app", "no module 'no_such_module'"),
            ("loadable.inner:app", "loadable"),
        ],
    )
    def test_what_is_not_there_is_named(self, address: str, said: str) -> None:
        with pytest.raises(InvalidApp, match=said):
            load_app(address)

    def test_an_import_that_fails_inside_the_module_is_shown_as_it_is(self) -> None:
        with pytest.raises(ModuleNotFoundError, match="'nee'"):
            load_app("needy:app")
        with pytest.raises(RuntimeError, match="on import"):
            load_app("broken:app")


@pytest.mark.parametrize(
    ("options", "models"),
    [
        ({"reasoning_model": "openai/in-house", "cost_budget": 1.0}, ["openai/in-house"]),
        ({"reasoning_model": "gpt-4o", "fallback_models": ["own/x"], "cost_budget": 1.0}, ["own/x"]),
        ({"reasoning_model": "openai/gpt-4o", "cost_budget": 1.0}, []),
        ({"reasoning_model": "openai/in-house"}, []),
        ({"reasoning_model": "openai/in-house", "cost_budget": 1.0, "input_cost_per_token": 1e-6}, []),
    ],
)
def test_a_cost_budget_without_a_price_is_warned_of(
    caplog: pytest.LogCaptureFixture, options: dict[str, Any], models: list[str]
) -> None:
    app = App("a", planners=[ChoreographyPlanner("p", goals=["x.goal"], **options)])
    app.validate()
    warned = [each.getMessage() for each in caplog.records]
    assert [
        f"no price is known of its model {model!r}" in text for model, text in zip(models, warned, strict=True)
    ] == [True for _ in models]
    assert all("token_budget" in text for text in warned)
