"""The private names of nats-py that our client overrides or uses."""

from __future__ import annotations

import inspect

import nats.aio.client
import pytest
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport
from nats.protocol import parser

METHODS = (
    "_attempt_reconnect",
    "_close",
    "_connect_command",
    "_connect_to_server",
    "_flush_pending",
    "_parse_header_lines",
    "_process_err",
    "_process_op_err",
    "_send_command",
    "_send_unsubscribe",
)
ATTRIBUTES = (
    "_err",
    "_error_cb",
    "_flush_queue",
    "_pending",
    "_pending_data_size",
    "_ps",
    "_server_info",
    "_status",
    "_subs",
    "_transport",
)


@pytest.mark.parametrize(
    ("owner", "names"),
    [
        (Client, METHODS),
        (Client(), ATTRIBUTES),
        (Subscription(Client()), ("_future", "_id", "_max_msgs", "_received")),
        (TcpTransport(), ("_io_reader", "_io_writer")),
        (parser.Parser(), ("buf", "needed", "parse", "state")),
        (parser, ("AWAITING_MSG_PAYLOAD", "CRLF_SIZE")),
    ],
    ids=["Client", "Client()", "Subscription", "TcpTransport", "Parser", "parser"],
)
def test_nats_py_still_has_the_private_names_that_are_overridden(owner: object, names: tuple[str, ...]) -> None:
    gone = [name for name in names if not hasattr(owner, name)]
    assert not gone, (
        f"this version of nats-py no longer has {', '.join(gone)}, which plancast_bus.jetstream.client overrides or "
        "uses: pin the version before it, or mend nats_client.py and parser.py"
    )


def test_nats_py_still_calls_what_is_overridden() -> None:
    """A method that is never called any more could be overridden without effect."""
    source = inspect.getsource(nats.aio.client)
    for call in ("self._ps.parse(", "self._connect_command(", "self._connect_to_server(", "self._process_err("):
        assert call in source, f"nats-py no longer calls {call}...): the override in GuardedClient has no effect"
