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
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Self

from aiohttp import web

from plancast.testing.model_server.answers import (
    Answer,
    AnswerLike,
    ModelRequest,
    Rule,
    as_answer,
    completion_chunks,
    error_body,
)

_KEY_HEADERS = frozenset({"authorization", "api-key", "x-api-key", "x-goog-api-key", "cookie", "proxy-authorization"})
_POST_PATHS = frozenset({"/v1/chat/completions", "/chat/completions"})
_GET_PATHS = frozenset({"/v1/models", "/models"})
_START_SECONDS = 10.0
_END_SECONDS = 0.1
_BACKLOG = 4096
_MAX_BODY = 64 * 1024 * 1024
_KEEP_ALIVE_SECONDS = 3600
_POLL_SECONDS = 0.005


class ModelServer:
    """A model with scripted answers.

    Args:
        answers: Served in order, one per request. Once they are used up, ``rule`` answers; without a rule the server
            answers with status 400.
        rule: Answers every request that ``answers`` does not.
        models: Known model names; others get 404. None accepts every name.
        api_keys: Accepted keys; others get 401. None accepts any key, and requests without one.
        response_formats: Supported types of ``response_format``; others get 400. None supports all.
        latency: Seconds before every answer, added to the answer's own delay.
        port: Of this machine; 0 chooses a free one. Entering fails with ``OSError`` if it is taken.
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
        port: int = 0,
    ) -> None:
        self._answers = deque(as_answer(answer) for answer in answers or ())
        self._default = Answer("ok") if answers is None and rule is None else None
        self._rule = rule
        self._models = models
        self._api_keys = api_keys
        self._formats = response_formats
        self._latency = latency
        self._server: web.AppRunner | None = None
        self._responding: set[asyncio.Task[Any]] = set()
        self._thread: threading.Thread | None = None
        self._thread_loop: asyncio.AbstractEventLoop | None = None
        self._wanted_port = port
        self._port = 0
        self.requests: list[ModelRequest] = []
        """Completion requests in the order of arrival."""
        self.high_water: int = 0
        """Highest number of requests in flight so far."""
        self.errors: list[Exception] = []
        """Exceptions that the rule raised; such a request is answered with status 500."""

    @property
    def url(self) -> str:
        """Base URL, for a client's ``api_base``."""
        if not self._port:
            raise RuntimeError("the model server is not running: use it as a context manager")
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def count(self) -> int:
        """Number of completion requests so far."""
        return len(self.requests)

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._server.server.connections) if self._server is not None and self._server.server else 0

    @property
    def in_flight(self) -> int:
        """Number of requests being answered now."""
        return len(self._responding)

    @property
    def cancelled(self) -> int:
        """Number of requests whose client disconnected before the answer."""
        return sum(request.cancelled for request in self.requests)

    def add(self, *answers: AnswerLike) -> None:
        """Append answers to the script."""
        self._answers.extend(as_answer(answer) for answer in answers)

    async def wait_for(self, *, count: int = 0, cancelled: int = 0, timeout: float = 10.0) -> None:
        """Wait until at least ``count`` requests have arrived and ``cancelled`` have been cancelled.

        Raises:
            TimeoutError: they have not within ``timeout`` seconds.
        """
        async with asyncio.timeout(timeout):
            while self.count < count or self.cancelled < cancelled:  # noqa: ASYNC110 - it may run in another thread
                await asyncio.sleep(_POLL_SECONDS)

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    def __enter__(self) -> Self:
        loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="model-server", daemon=True)
        self._thread_loop = loop
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), loop).result(_START_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is None or self._thread_loop is None:
            return
        asyncio.run_coroutine_threadsafe(self._stop(), self._thread_loop).result(_START_SECONDS)
        self._thread_loop.call_soon_threadsafe(self._thread_loop.stop)
        self._thread.join(_START_SECONDS)
        self._thread_loop.close()
        self._thread = self._thread_loop = None

    async def _start(self) -> None:
        app = web.Application(client_max_size=_MAX_BODY)
        app.router.add_route("*", "/{path:.*}", self._respond)
        server = web.AppRunner(
            app,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=_KEEP_ALIVE_SECONDS,
            shutdown_timeout=_END_SECONDS,
        )
        await server.setup()
        try:
            await web.TCPSite(server, "127.0.0.1", self._wanted_port, backlog=_BACKLOG).start()
        except OSError:
            await server.cleanup()
            raise
        self._port = server.addresses[0][1]
        self._server = server

    async def _stop(self) -> None:
        server, self._server, self._port = self._server, None, 0
        if server is None:
            return
        for task in self._responding:
            task.cancel()
        await asyncio.gather(*self._responding, return_exceptions=True)
        await server.cleanup()

    async def _respond(self, http: web.Request) -> web.StreamResponse:
        path = http.path
        if http.method == "GET" and path in _GET_PATHS:
            data = [{"id": name, "object": "model", "created": 0, "owned_by": "test"} for name in self._models or ()]
            return _json_response(json.dumps({"object": "list", "data": data}))
        if path not in _POST_PATHS:
            return _json_response(error_body(f"Unknown request URL: {http.method} {path}"), 404)
        if http.method != "POST":
            return _json_response(error_body(f"{http.method} is not allowed here"), 405)
        try:
            body = await http.json()
        except ValueError:
            body = None
        if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
            return _json_response(error_body("the body is no JSON object with messages"), 400)
        return await self._complete(http, body)

    async def _complete(self, http: web.Request, fields: dict[str, Any]) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in http.headers.items()}
        key = _key(headers)
        request = ModelRequest(
            number=len(self.requests) + 1,
            model=str(fields.get("model", "")),
            messages=fields["messages"],
            parameters={name: value for name, value in fields.items() if name not in ("model", "messages")},
            headers={name: value for name, value in headers.items() if name not in _KEY_HEADERS},
            key_given=bool(key),
            key_tail=key[-4:] if len(key) >= 8 else "",
            received_at=time.monotonic(),
        )
        self.requests.append(request)
        task = asyncio.current_task()
        assert task is not None
        self._responding.add(task)
        self.high_water = max(self.high_water, self.in_flight)
        try:
            answer = self._refusal(request, key) or await self._answer(request)
            await asyncio.sleep(self._latency + answer.delay)
            if answer.fault == "hang":
                await asyncio.Event().wait()
            request.status = answer.status
            headers = {**answer.headers, "Content-Type": answer.content_type}
            body = answer.encode(request)
            if request.parameters.get("stream") and answer.status == 200 and answer.body is None:
                return await self._stream(http, answer, json.loads(body))
            if answer.fault == "cut":
                return await _cut(http, body, answer.status, headers)
            return web.Response(body=body, status=answer.status, headers=headers)
        except asyncio.CancelledError:
            # Closing the server cancels requests too; only a client that disconnects counts as cancelled.
            request.cancelled = self._server is not None
            raise
        finally:
            self._responding.discard(task)
            request.finished_at = time.monotonic()

    async def _stream(self, http: web.Request, answer: Answer, completion: dict[str, Any]) -> web.StreamResponse:
        """Send a completion as server-sent events, a word at a time; a cut one ends after half of them."""
        response = web.StreamResponse(headers={**answer.headers, "Content-Type": "text/event-stream"})
        await response.prepare(http)
        chunks = completion_chunks(completion)
        for number, chunk in enumerate(chunks):
            if answer.fault == "cut" and number >= len(chunks) // 2:
                if http.transport is not None:
                    http.transport.close()
                return response
            await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            await asyncio.sleep(answer.word_delay)
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    def _refusal(self, request: ModelRequest, key: str) -> Answer | None:
        """Error for a request that the configured models, keys or formats do not allow."""
        if self._api_keys is not None and key not in self._api_keys:
            return Answer.error(401, "Incorrect API key provided")
        if self._models is not None and request.model not in self._models:
            return Answer.error(404, f"The model '{request.model}' does not exist", param="model")
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
            answer = self._rule(request)
            return as_answer(await answer if inspect.isawaitable(answer) else answer)
        except Exception as error:
            self.errors.append(error)
            return Answer.error(500, f"the rule failed: {error!r}")


async def _cut(http: web.Request, body: bytes, status: int, headers: Mapping[str, str]) -> web.StreamResponse:
    """Send half of the body, then close the connection."""
    response = web.StreamResponse(status=status, headers=headers)
    response.content_length = len(body)
    await response.prepare(http)
    await response.write(body[: len(body) // 2])
    if http.transport is not None:
        http.transport.close()
    return response


def _json_response(body: str, status: int = 200) -> web.Response:
    return web.Response(text=body, status=status, content_type="application/json")


def _key(headers: dict[str, str]) -> str:
    value = headers.get("authorization", "")
    if value.lower().startswith("bearer "):
        return value[7:].strip()
    return value or headers.get("x-api-key", "") or headers.get("api-key", "")
