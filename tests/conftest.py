"""Fixtures of all tests, and how the suite is run: which tests share a process, and what does not depend on speed."""

import gc
import logging
import os
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from plancast.telemetry.logging import FieldFormatter
from plancast_bus import outage_log
from plancast_bus.nats_server.process import NatsServer

ONE_PROCESS = ("tests/e2e/",)
"""Folders whose tests share one deployment: each goes to one worker as a whole, and first, as it takes longest."""

# A busy machine is not a defect: neither an example nor the making of examples has a time limit of its own.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


class FileScheduling(LoadScopeScheduling):
    """Distributes whole files among pytest-xdist's workers, so that fixtures of a module are made once."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return next((folder for folder in ONE_PROCESS if path.startswith(folder)), path)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FileScheduling:
    config.option.loadscopereorder = False
    return FileScheduling(config, log)


def pytest_configure(config: pytest.Config) -> None:
    # Only the order of tests is random; random numbers within a test are as random as without the plugin.
    config.option.randomly_reset_seed = False
    os.environ.pop("COLUMNS", None)  # pytest-xdist sets it; commands under test shall print as into a pipe


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Render a failure without garbage collection.

    pytest parses the source of a failed test. A task that is collected in the middle of that logs its traceback, for
    which CPython 3.11 parses source as well, and then ends pytest with "AST constructor recursion depth mismatch".
    """
    if call.excinfo is None:
        return (yield)
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not item.nodeid.startswith(ONE_PROCESS))


@pytest.fixture(autouse=True)
def _no_handlers_of_commands() -> Iterator[None]:
    """Remove the log handler of a command that a test has run: it writes to the stderr of that test."""
    yield
    root = logging.getLogger()
    for each in [each for each in root.handlers if isinstance(each.formatter, FieldFormatter)]:
        root.removeHandler(each)


@pytest.fixture(autouse=True)
def _no_outage_of_others() -> None:
    """Have each test log its failures, whatever the tests before it have logged."""
    outage_log.forget()


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """One nats-server for the whole run: give streams, subjects and buckets names of your own."""
    with NatsServer(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture
def fresh_nats(tmp_path: Path) -> Iterator[NatsServer]:
    """A nats-server of a test's own, to be killed, restarted or filled up."""
    with NatsServer(tmp_path / "nats") as server:
        yield server


@pytest.fixture
def ray_folder() -> Iterator[str]:
    """RAY_TMPDIR of a Ray of a test's own. Its sockets lie there, and the paths of sockets must be short."""
    with tempfile.TemporaryDirectory(prefix="pc") as folder:
        yield folder
