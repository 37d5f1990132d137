"""The gateway's page in a headless Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="needs the playwright package")

WITHIN_MS = 20_000
expect = sync_api.expect
expect.set_options(timeout=WITHIN_MS)

_ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
)  # fmt: skip


@contextmanager
def chromium() -> Iterator[Any]:
    """One browser. While it runs, its thread has an event loop: no asyncio.run beside it."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("needs chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def page_of(browser: Any, url: str, *, may_log: tuple[str, ...] = (), **options: Any) -> Iterator[Any]:
    """A page of its own session. At its end: no request has left the gateway, nothing was complained about."""
    context = browser.new_context(base_url=url, **options)
    requests: list[str] = []
    complaints: list[str] = []
    context.on("request", lambda request: requests.append(request.url))
    context.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    context.on("weberror", lambda error: complaints.append(str(error.error)))
    page = context.new_page()
    page.set_default_timeout(WITHIN_MS)
    try:
        page.goto("/")
        yield page
    finally:
        context.close()
    assert requests
    assert not [asked for asked in requests if not asked.startswith(f"{url}/")]
    assert not [text for text in complaints if not any(part in text for part in may_log)]


def live(page: Any) -> Any:
    """Once it shows the mesh."""
    page.locator("#status-text", has_text="Live").wait_for()
    return page


def ask(page: Any, text: str, **parameters: str) -> None:
    """Fill in what is given, and send."""
    page.locator("#parameters").evaluate("(details) => { details.open = true; }")
    for name, value in parameters.items():
        page.fill(f"#{name.replace('_', '-')}", value)
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def answer(page: Any) -> Any:
    """The last one, with `.turn-text` and `.turn-footer`."""
    return page.locator(".turn.assistant").last
