"""A client of OpenAI-compatible servers that asks again where that can help."""

from __future__ import annotations

import asyncio
import math
import threading
from collections import Counter
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

__all__ = ["EndpointClient", "EndpointError", "Patience"]

_RETRIED = frozenset({408, 409, 425, 429})
_MAX_BACKOFF = 30.0
_SHOWN_CHARACTERS = 300


class EndpointError(Exception):
    """The endpoint did not give what was asked; the message says what and what to do.

    Attributes:
        status: The HTTP status, or None where no answer came.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Patience:
    """How long to wait for a server.

    Attributes:
        timeout: Seconds for one answer.
        attempts: Tries of one request.
        backoff: Seconds before the second try; doubled each time.
        max_wait: Longest Retry-After, in seconds, that is waited for.
    """

    timeout: float = 60.0
    attempts: int = 6
    backoff: float = 0.5
    max_wait: float = 120.0

    def __post_init__(self) -> None:
        for name in ("timeout", "attempts"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} = {getattr(self, name)} must be above 0")


class EndpointClient:
    """Sends requests, many at once, from a thread of its own.

    Every request is tried again, unchanged, after a broken connection, a timeout, a 5xx or one
    of 408, 409, 425 and 429. Use it as a context manager: leaving it cancels what is under way.

    Args:
        url: Base URL, the one that ends in /v1.
        api_key: Sent as a bearer token; never shown.
        patience: How long to wait.
        concurrency: Connections at once.

    Attributes:
        concurrency: The same.
        troubles: How often which trouble led to another try.

    Raises:
        ValueError: If the URL is no http(s) URL or httpx is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        patience: Patience | None = None,
        concurrency: int = 16,
    ) -> None:
        self.url = checked_url(url)
        self.patience = patience or Patience()
        self.concurrency = concurrency
        self.troubles: Counter[str] = Counter()
        self._httpx = _load_httpx()
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = self._httpx.Timeout(self.patience.timeout, connect=min(10, self.patience.timeout))
        limits = self._httpx.Limits(max_connections=concurrency + 1)
        # a proxy of the environment is none of a local server's business
        self._http = self._httpx.AsyncClient(
            headers=headers, timeout=timeout, limits=limits, trust_env=not _is_local(self.url)
        )
        self._gate = asyncio.Semaphore(concurrency)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="endpoint-client", daemon=True
        )
        self._thread.start()

    def __enter__(self) -> EndpointClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancels what is under way and closes every connection."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def post(self, path: str, body: dict[str, Any], *, attempts: int | None = None) -> Future[Any]:
        """Sends JSON to a path below the base URL; the future gives JSON or an EndpointError."""
        tries = attempts or self.patience.attempts
        return self._start(self._ask("POST", self.url + path, body, tries))

    def get(self, path: str, *, attempts: int | None = None) -> Any:
        """Reads JSON from a path below the base URL.

        Raises:
            EndpointError: If that is impossible.
        """
        tries = attempts or self.patience.attempts
        return self._start(self._ask("GET", self.url + path, None, tries)).result()

    def metrics(self) -> str | None:
        """Reads the server's Prometheus page, at /metrics beside /v1; None if it has none."""
        root = self.url.removesuffix("/v1")
        try:
            return self._start(self._read(root + "/metrics")).result()
        except EndpointError:
            return None

    def _start(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(self._noted(work), self._loop)

    async def _noted(self, work: Coroutine[Any, Any, Any]) -> Any:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            return await work
        finally:
            self._tasks.discard(task)

    # only our own tasks: those that a request started itself end with it
    async def _shut(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._http.aclose()

    async def _read(self, url: str) -> str:
        try:
            response = await self._http.get(url)
        except self._httpx.HTTPError as error:
            raise EndpointError(_describe(error)) from error
        if response.status_code != 200:
            raise EndpointError(f"HTTP {response.status_code}", response.status_code)
        return response.text

    async def _ask(self, method: str, url: str, body: Any, attempts: int) -> Any:
        async with self._gate:
            return await self._try(method, url, body, attempts)

    async def _try(self, method: str, url: str, body: Any, attempts: int) -> Any:
        last = EndpointError("never asked")
        for attempt in range(attempts):
            wait = min(self.patience.backoff * 2**attempt, _MAX_BACKOFF)
            try:
                response = await self._http.request(method, url, json=body)
            except self._httpx.HTTPError as error:
                trouble = _describe(error)
                last = EndpointError(f"{url}: {trouble}")
            else:
                status = response.status_code
                if status < 400:
                    return _json(response, url)
                last = EndpointError(f"{url}: HTTP {status}, {_reason(response)}", status)
                if status not in _RETRIED and status < 500:
                    raise last
                trouble = f"HTTP {status}"
                wait = self._wanted_wait(response, wait, last)
            if attempt + 1 < attempts:
                self.troubles[trouble] += 1
                await asyncio.sleep(wait)
        tries = "once" if attempts == 1 else f"{attempts} times"
        raise EndpointError(f"{last} (asked {tries})", last.status) from last

    def _wanted_wait(self, response: Any, wait: float, error: EndpointError) -> float:
        wanted = _retry_after(response.headers.get("retry-after"))
        if wanted is None:
            return wait
        if wanted > self.patience.max_wait:
            raise EndpointError(
                f"{error}; it asks to come back in {wanted:.0f} s, longer than the "
                f"{self.patience.max_wait:.0f} s that are waited for",
                error.status,
            )
        return max(wanted, 0.0)


def checked_url(url: str) -> str:
    """Returns a base URL without its last slash.

    Raises:
        ValueError: If it is no http(s) URL.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(f"url = {url!r} is no http(s) URL; pass one like http://localhost:8000/v1")
    return url.rstrip("/")


def _load_httpx() -> Any:
    try:
        import httpx
    except ImportError as error:
        raise ValueError(
            "auditing an endpoint needs httpx; install it with: pip install 'fairdraft[audit]'"
        ) from error
    return httpx


def _is_local(url: str) -> bool:
    return urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")


def _describe(error: Exception) -> str:
    kind = type(error).__name__
    if "Timeout" in kind:
        return f"no answer in time ({kind})"
    return f"{kind}: {error}" if str(error) else kind


def _json(response: Any, url: str) -> Any:
    try:
        return response.json()
    except ValueError as error:
        raise EndpointError(f"{url}: the answer is no JSON: {_short(response.text)}") from error


# servers word an error as {"error": {"message"}}, {"message"}, {"detail"} or plain text
def _reason(response: Any) -> str:
    try:
        found = response.json()
    except ValueError:
        return _short(response.text)
    while isinstance(found, dict):
        inner = next((found[key] for key in ("error", "message", "detail") if key in found), None)
        if inner is None:
            break
        found = inner
    return _short(str(found))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN_CHARACTERS else line[:_SHOWN_CHARACTERS] + "..."


def _retry_after(value: str | None) -> float | None:
    if value is None:
        return None
    try:
        return seconds if math.isfinite(seconds := float(value)) else None
    except ValueError:
        pass
    try:
        when = parsedate_to_datetime(value)
    except ValueError:
        return None
    return (when - datetime.now(UTC)).total_seconds()
