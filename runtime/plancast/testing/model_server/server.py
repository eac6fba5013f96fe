"""ModelServer: a local HTTP server that speaks the OpenAI chat protocol, for tests with no model and no key.

``async with ModelServer(["first answer", Answer.error(500)]) as server:`` serves in the running loop; a plain
``with`` serves in a thread of its own. Models are reached by ``model="openai/anything", api_base=server.url``.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable
from types import TracebackType
from typing import Any, Self

from plancast.testing.http_protocol import HttpProtocol, HttpRequest, HttpResponse
from plancast.testing.model_server.answers import Answer, AnswerLike, ModelRequest, Rule, as_answer, error_body

_KEY_HEADERS = frozenset({"authorization", "api-key", "x-api-key", "x-goog-api-key", "cookie", "proxy-authorization"})
_POST_PATHS = frozenset({"/v1/chat/completions", "/chat/completions"})
_GET_PATHS = frozenset({"/v1/models", "/models"})
_START_SECONDS = 10.0
_POLL_SECONDS = 0.005


class ModelServer:
    """A model that says what it is told to.

    Args:
        answers: Given in order, one for each request. When they are used up, ``rule`` answers; without one the
            server answers 400 and says so.
        rule: Answers every request that ``answers`` does not.
        models: Names that are known; others get 404. None knows every name.
        api_keys: Keys that are accepted; others get 401. None accepts any, and none at all.
        response_formats: Types of ``response_format`` that are supported; others get 400. None supports all.
        latency: Seconds before any answer, on top of its own delay.
    """

    def __init__(
        self,
        answers: Iterable[AnswerLike] | None = None,
        *,
        rule: Rule | None = None,
        models: Collection[str] | None = None,
        api_keys: Collection[str] | None = None,
        response_formats: Collection[str] | None = None,
        latency: float = 0.0,
    ) -> None:
        self._answers = deque(as_answer(answer) for answer in answers or ())
        self._default = Answer("ok") if answers is None and rule is None else None
        self._rule = rule
        self._models = models
        self._api_keys = api_keys
        self._formats = response_formats
        self._latency = latency
        self._server: asyncio.Server | None = None
        self._connections: set[HttpProtocol] = set()
        self._thread: threading.Thread | None = None
        self._thread_loop: asyncio.AbstractEventLoop | None = None
        self._port = 0
        self.requests: list[ModelRequest] = []
        """Every request for a completion, in the order of arrival."""
        self.in_flight = 0
        """Requests that are being answered now."""
        self.high_water = 0
        """The most requests that were ever being answered at once."""
        self.errors: list[Exception] = []
        """What rules have raised; such a request is answered with status 500."""

    @property
    def url(self) -> str:
        """What a client takes as ``api_base``."""
        if not self._port:
            raise RuntimeError("the model server is not running: use it as a context manager")
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def count(self) -> int:
        """How many requests there were."""
        return len(self.requests)

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    @property
    def cancelled(self) -> int:
        """How many clients went away before they had their answer."""
        return sum(request.cancelled for request in self.requests)

    def add(self, *answers: AnswerLike) -> None:
        """Give these answers next, after those that are not used up."""
        self._answers.extend(as_answer(answer) for answer in answers)

    async def wait_for(self, *, count: int = 0, cancelled: int = 0, timeout: float = 10.0) -> None:
        """Wait until there were so many requests, and so many cancelled ones.

        Raises:
            TimeoutError: there were not.
        """
        async with asyncio.timeout(timeout):
            while self.count < count or self.cancelled < cancelled:  # noqa: ASYNC110 - it may run in another thread
                await asyncio.sleep(_POLL_SECONDS)

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    def __enter__(self) -> Self:
        loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="model-server", daemon=True)
        self._thread_loop = loop
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), loop).result(_START_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is None or self._thread_loop is None:
            return
        asyncio.run_coroutine_threadsafe(self._stop(), self._thread_loop).result(_START_SECONDS)
        self._thread_loop.call_soon_threadsafe(self._thread_loop.stop)
        self._thread.join(_START_SECONDS)
        self._thread_loop.close()
        self._thread = self._thread_loop = None

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: HttpProtocol(self._respond, self._connections), "127.0.0.1", 0, backlog=4096
        )
        self._port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        server, self._server, self._port = self._server, None, 0
        if server is None:
            return
        server.close()
        working = [task for connection in self._connections if (task := connection.abort()) is not None]
        await asyncio.gather(*working, return_exceptions=True)
        await server.wait_closed()

    async def _respond(self, http: HttpRequest) -> HttpResponse:
        if http.method == "GET" and http.path in _GET_PATHS:
            data = [{"id": name, "object": "model", "created": 0, "owned_by": "test"} for name in self._models or ()]
            return HttpResponse(json.dumps({"object": "list", "data": data}).encode())
        if http.path not in _POST_PATHS:
            return HttpResponse(error_body(f"Unknown request URL: {http.method} {http.path}").encode(), status=404)
        if http.method != "POST":
            return HttpResponse(error_body(f"{http.method} is not allowed here").encode(), status=405)
        try:
            body = json.loads(http.body)
        except ValueError:
            body = None
        if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
            return HttpResponse(error_body("the body is no JSON object with messages").encode(), status=400)
        return await self._complete(http, body)

    async def _complete(self, http: HttpRequest, body: dict[str, Any]) -> HttpResponse:
        key = _key(http.headers)
        request = ModelRequest(
            number=len(self.requests) + 1,
            model=str(body.get("model", "")),
            messages=body["messages"],
            parameters={name: value for name, value in body.items() if name not in ("model", "messages")},
            headers={name: value for name, value in http.headers.items() if name not in _KEY_HEADERS},
            key_given=bool(key),
            key_tail=key[-4:] if len(key) >= 8 else "",
            received_at=time.monotonic(),
        )
        self.requests.append(request)
        self.in_flight += 1
        self.high_water = max(self.high_water, self.in_flight)
        try:
            answer = self._refusal(request, key) or await self._answer(request)
            await asyncio.sleep(self._latency + answer.delay)
            if answer.fault == "hang":
                await asyncio.Event().wait()
            request.status = answer.status
            return HttpResponse(
                answer.encode(request), answer.status, answer.content_type, answer.headers, answer.fault == "cut"
            )
        except asyncio.CancelledError:
            # Closing the server ends what hangs, too; only a client that went away has cancelled.
            request.cancelled = self._server is not None
            raise
        finally:
            self.in_flight -= 1
            request.finished_at = time.monotonic()

    def _refusal(self, request: ModelRequest, key: str) -> Answer | None:
        """The error that this request gets whatever the script says."""
        if self._api_keys is not None and key not in self._api_keys:
            return Answer.error(401, "Incorrect API key provided")
        if self._models is not None and request.model not in self._models:
            return Answer.error(404, f"The model '{request.model}' does not exist", param="model")
        if request.parameters.get("stream"):
            return Answer.error(400, "this server does not stream", param="stream")
        wanted = request.parameters.get("response_format")
        kind = wanted.get("type") if isinstance(wanted, dict) else None
        if self._formats is not None and kind is not None and kind not in self._formats:
            message = f"Invalid parameter: 'response_format' of type '{kind}' is not supported with this model."
            return Answer.error(400, message, param="response_format")
        return None

    async def _answer(self, request: ModelRequest) -> Answer:
        if self._answers:
            return self._answers.popleft()
        if self._rule is None:
            return self._default or Answer.error(400, "the model server's script has no answer left")
        try:
            said = self._rule(request)
            return as_answer(await said if inspect.isawaitable(said) else said)
        except Exception as error:
            self.errors.append(error)
            return Answer.error(500, f"the rule failed: {error!r}")


def _key(headers: dict[str, str]) -> str:
    value = headers.get("authorization", "")
    if value.lower().startswith("bearer "):
        return value[7:].strip()
    return value or headers.get("x-api-key", "") or headers.get("api-key", "")
