"""Reasoner: calls models through litellm, which no other module imports.

litellm takes seconds and about 170 MB to import, so it is loaded at the first call, in a thread.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import math
import os
import random
import sys
import time
import warnings
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from plancast.errors import ModelUnavailable
from plancast.models.failures import Failure
from plancast.models.litellm_call import Level, ModelCall, provider_of, usage_of
from plancast.models.port import ReasonReply, ReasonRequest, ReasonRetry
from plancast.models.rate_limit import RateLimit
from plancast.models.response_cache import ResponseCache
from plancast.models.text_stream import SINK, TextSink
from plancast.telemetry.trace_scope import TRACING

if TYPE_CHECKING:
    from plancast.telemetry.tracing import Tracing

logger = logging.getLogger(__name__)

_BEFORE_IMPORT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else the import downloads a price list
    "LITELLM_MODE": "PRODUCTION",  # else the import reads a .env file into the environment
    # Else at most 500 calls to a host go out at once, and those that wait use up their timeout.
    # 0 would not mean "no limit" but aiohttp's own 100.
    "AIOHTTP_CONNECTOR_LIMIT": "100000",
    "AIOHTTP_CONNECTOR_LIMIT_PER_HOST": "100000",
}


class Reasoner:
    """Calls models in this process; a :class:`~plancast.models.port.ReasonerPort`.

    Requests with the same idempotency key share one call and its reply. A Reasoner needs no closing: its connections
    are closed with the event loop.

    Args:
        retry: The retry policy; the clients' own retries are off.
        timeout: Seconds for one attempt, where a request has no timeout.
        limits: Rate limits by model.
        structured_output: Levels of models that litellm does not know, or knows wrongly. An OpenAI-compatible model
            that it does not know counts as ``json_object``, and as plain text once its server has refused that.
        cache_size: Cached replies.
        cache_seconds: Their maximum age.
        secrets: Redacted from answers and errors, besides the keys of requests and of the environment.
        sink: Receives replies that are to be streamed, piece by piece; None: that of the context.
        sleep: Waits between attempts.
        chance: Returns a number from 0 to 1, for jitter.
    """

    def __init__(
        self,
        *,
        retry: ReasonRetry | None = None,
        timeout: float = 120.0,
        limits: Mapping[str, RateLimit] | None = None,
        structured_output: Mapping[str, Level] | None = None,
        cache_size: int = 1024,
        cache_seconds: float = 600.0,
        secrets: Iterable[str] = (),
        sink: TextSink | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._retry = retry or ReasonRetry()
        self._timeout = timeout
        self._secrets = tuple(secrets)
        self._sink = sink
        self._limits = dict(limits or {})
        self._levels = dict(structured_output or {})
        self._learned: dict[tuple[str, str | None], Level] = {}
        self.tracing: Tracing | None = None
        """Creates the spans of calls; None: the current turn's does."""
        self._cache = ResponseCache(cache_size, cache_seconds)
        self._sleep = sleep
        self._chance = chance

    async def complete(self, request: ReasonRequest) -> ReasonReply:
        """Call the model, then its fallbacks, until one replies. Cancelling closes the connection to the model.

        Raises:
            ModelUnavailable: none replied; the message has the failure of each.
        """
        if not request.idempotency_key:
            return await self._call(request)
        return await self._cache.get((request.tenant_id, request.idempotency_key), lambda: self._call(request))

    async def _call(self, request: ReasonRequest) -> ReasonReply:
        begun = time.monotonic()
        litellm = await load_litellm()
        models = (request.model, *request.fallback_models)
        tries, calls = self._retry.attempts, 0
        failures: dict[str, Failure] = {}
        for position, model in enumerate(models):
            share = math.ceil(tries / (len(models) - position))
            if share < 1:
                break
            level = self._level(litellm, model, request.api_base)
            call = ModelCall(litellm, request, model, self._timeout, level, self._secrets, self._sink or SINK.get())
            answer, failure, failed = await self._try_model(call, share, request)
            calls, tries = calls + call.made, tries - failed
            if failure is None:
                choice = answer.choices[0]
                return ReasonReply(
                    text=choice.message.content or "",
                    usage=usage_of(litellm, answer, call),
                    model=model,
                    latency_seconds=time.monotonic() - begun,
                    attempts=calls,
                    fallback_used=position > 0,
                    finish_reason=choice.finish_reason or "stop",
                )
            failures[model] = failure
            logger.info("model %s failed: %s", model, failure.text, extra={"plan_id": request.plan_id})
        raise self._unavailable(request.model, failures, calls)

    async def _try_model(self, call: ModelCall, share: int, request: ReasonRequest) -> tuple[Any, Failure | None, int]:
        """Call one model until it replies, fails for good, or has failed transiently `share` times."""
        limit = self._limits.get(call.model)
        failed = 0
        while True:
            ticket = await limit.acquire(call.estimate()) if limit else None
            answer, failure = await self._make(call, request)
            if failure is None:
                if ticket:
                    ticket.spent(answer.usage.total_tokens)
                return answer, None, failed
            if not failure.transient:
                if not call.lower(failure):
                    return None, failure, failed
                self._learned[call.model, call.api_base] = call.level
                continue
            failed += 1
            if limit and failure.retry_after:
                limit.pause(failure.retry_after)
            if failed >= share or (failure.retry_after or 0.0) > self._retry.max_retry_after:
                return None, failure, failed
            await self._sleep(self._retry.delay(failed, failure.retry_after, self._chance()))

    async def _make(self, call: ModelCall, request: ReasonRequest) -> tuple[Any, Failure | None]:
        tracing = self.tracing or TRACING.get()
        if tracing is None:
            return await call.make()
        from plancast.telemetry.tracing import answered

        work = tracing.chat(request, call.model, call.provider)
        try:
            answer, failure = await call.make()
            if failure is not None:
                work.fail(str(failure.status or "") or "unavailable")
            else:
                choice = answer.choices[0]
                used = getattr(answer, "usage", None)
                tokens = int(getattr(used, "prompt_tokens", 0) or 0), int(getattr(used, "completion_tokens", 0) or 0)
                model, answer_id = str(getattr(answer, "model", "") or ""), str(getattr(answer, "id", "") or "")
                answered(work, model, tokens, str(choice.finish_reason or "stop"), answer_id)
            return answer, failure
        except BaseException as error:
            work.fail(type(error).__name__)
            raise
        finally:
            work.end()

    def _unavailable(self, model: str, failures: Mapping[str, Failure], calls: int) -> ModelUnavailable:
        """One error for all models, each failure after the first with the model's name."""
        first = failures[model]
        reasons = [failure.text if name == model else f"{name}: {failure.text}" for name, failure in failures.items()]
        often = f" ({calls} calls)" if calls > 1 else ""
        error = ModelUnavailable(model, "; ".join(reasons) + often, first.status)
        waits = [failure.retry_after or 0.0 for failure in failures.values()]
        error.retry_after = min((each for each in waits if each > self._retry.max_retry_after), default=None)
        error.attempts = calls
        return error

    def _level(self, litellm: Any, model: str, api_base: str | None) -> Level:
        learned = self._learned.get((model, api_base)) or self._learned.get((model, None))
        return learned or self._levels.get(model) or known_level(litellm, model)


async def load_litellm() -> Any:
    """Import litellm in a thread, and have its connections closed with the event loop."""
    litellm = sys.modules.get("litellm") if _loaded else None
    if litellm is None:
        litellm = await asyncio.to_thread(_load)
    loop = asyncio.get_running_loop()
    if loop not in _guards:
        guard = _guards[loop] = _close_clients_at_end(litellm, id(loop))
        await anext(guard)
    return litellm


_loaded = False
_guards: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncGenerator[None]] = weakref.WeakKeyDictionary()


def _load() -> Any:
    global _loaded
    for name, value in _BEFORE_IMPORT.items():
        os.environ.setdefault(name, value)
    _quieten()
    collects = gc.isenabled()
    gc.disable()  # it finds nothing among what is loaded, and takes a third of the time
    try:
        # By name, so that type checkers do not analyse litellm, which takes minutes.
        litellm: Any = importlib.import_module("litellm")
        if not _loaded:
            litellm.suppress_debug_info = True  # else it prints hints to its website on errors
            _quieten()  # the import has added handlers
            _warm_up(litellm)
    except ImportError as error:
        raise ModelUnavailable("of any name", f"litellm cannot be imported ({error}): pip install litellm") from error
    finally:
        if collects:
            gc.enable()
    _loaded = True
    return litellm


def _warm_up(litellm: Any) -> None:
    """Load what litellm imports in its first call: half a second, in which the event loop would stand still."""
    importlib.import_module("openai.resources")
    message = {"role": "user", "content": ""}
    litellm.completion("openai/none", [message], mock_response=" ", api_key="none")  # answers without a connection


def _quieten() -> None:
    """Silence litellm's loggers, which write to stderr, unless ``LITELLM_LOG`` is set.

    The OpenAI client's log of requests, which holds credentials, is always dropped. So are the warnings about litellm's
    types, and about the coroutine that never starts when a call is cancelled while litellm prepares it in a thread.
    """
    warnings.filterwarnings("ignore", r"coroutine '\w+\.a(sync_)?completion\w*' was never awaited", RuntimeWarning)
    warnings.filterwarnings(
        "ignore", r"Accessing the 'model_(computed_)?fields' attribute on the instance", DeprecationWarning
    )
    warnings.filterwarnings("ignore", r"Item '\w+' on TypedDict class '\w+' is using the `ReadOnly`", UserWarning)
    logging.getLogger("openai._base_client").addFilter(_drop_requests)
    if os.environ.get("LITELLM_LOG"):
        return
    for name in ("LiteLLM", "LiteLLM Proxy", "LiteLLM Router"):
        log = logging.getLogger(name)
        log.handlers.clear()
        log.setLevel(logging.CRITICAL)


def _drop_requests(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("Request options")


async def _close_clients_at_end(litellm: Any, loop_id: int) -> AsyncGenerator[None]:
    """Close litellm's HTTP clients of a loop when the loop shuts down its async generators; litellm does not."""
    try:
        yield
    finally:
        clients = litellm.in_memory_llm_clients_cache.cache_dict
        for key in [key for key in clients if str(key).endswith(f"-{loop_id}")]:
            client = clients.pop(key)
            close = getattr(client, "close", None) or getattr(client, "aclose", None)
            if close is not None:
                closing = close()
                if hasattr(closing, "__await__"):
                    await closing


@cache
def known_level(litellm: Any, model: str) -> Level:
    """The structured output that a model supports, as far as litellm knows."""
    if not provider_of(litellm, model):
        return "text"
    if litellm.supports_response_schema(model=model):
        return "json_schema"
    return "json_object" if "response_format" in (litellm.get_supported_openai_params(model=model) or ()) else "text"
