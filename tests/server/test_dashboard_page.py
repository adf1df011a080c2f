"""The dashboard in a real headless Chromium, against a real server."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

CHROMIUM = Path("/usr/bin/chromium")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM}")
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
PROMPT = "Each book has a shelf, each shelf has a number, and each number is on the plan at the door. "


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        made = started.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield made
        made.close()


class Opened:
    """A page, all that it complained of, and all that it asked for."""

    def __init__(self, browser, url: str, **context: Any) -> None:
        self.context = browser.new_context(**{"viewport": DESK, **context})
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(url)

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()

    def blocks(self) -> dict[str, int]:
        """What the legend of the floor plan says, by state. Read at once: the page draws anew each second."""
        items = (
            "[...document.querySelectorAll('#floor-legend li')].map(item => [item.dataset.state, item.dataset.blocks])"
        )
        return {state: int(blocks) for state, blocks in self.page.evaluate(items)}

    def until(self, condition: str) -> None:
        """Wait for an expression in the page; Playwright's own way needs an eval, which the page's policy forbids."""
        deadline = time.monotonic() + 60
        while not self.page.evaluate(condition):
            assert time.monotonic() < deadline, f"it never came true: {condition}"
            self.page.wait_for_timeout(100)


@pytest.fixture
def opened(browser) -> Iterator[Any]:
    """Opens pages, and looks at their complaints in the end."""
    pages: list[Opened] = []

    def look(url: str, **context: Any) -> Opened:
        pages.append(Opened(browser, url, **context))
        return pages[-1]

    yield look
    for one in pages:
        one.context.close()
    complaints = [text for one in pages for text in one.complaints if "status of 40" not in text]
    assert complaints == []


@pytest.fixture(scope="module")
def tiny(start_server, qwen_path: Path) -> Iterator[Any]:
    made = start_server(str(qwen_path), "--kv-cache-memory-bytes", "2MiB", "--threads", "1")
    yield made
    assert made.stop() == 0, "".join(made.log)


def test_an_empty_server(tiny, opened) -> None:
    seen = opened(tiny.url)
    seen.until("document.querySelectorAll('#floor-legend li').length == 5")
    assert seen.blocks()["free"] == sum(seen.blocks().values()) == tiny.metric("kv_blocks", state="free")
    assert seen.text("#alarms") == "No alarm."
    assert seen.text("[data-figure=hit_rate] .value") == "–", "no rate is not a rate of 0"
    assert "Nothing is in the tree" in seen.text("#tree-box")
    assert all(url.startswith(tiny.url) for url in seen.asked), "nothing comes from elsewhere"


def test_what_is_kept_and_shared_is_drawn(tiny, opened) -> None:
    for number in range(3):
        tiny.complete(f"{PROMPT * 3}Question {number}?", max_tokens=2)
    seen = opened(tiny.url)
    seen.until("document.querySelectorAll('#tree-box [data-node]').length > 2")
    assert seen.blocks() == {"pinned": 0, "shared": 0, **tiny.blocks()}
    nodes = "[...document.querySelectorAll('#tree-box [data-node]')].map(node => Number(node.dataset.hits))"
    hits = seen.page.evaluate(nodes)
    assert max(hits) == 2, "the second and the third found the first one's prefix"
    rate = tiny.metric("prefix_cache_hits_total") / tiny.metric("prefix_cache_queries_total")
    assert seen.text("[data-figure=hit_rate] .value") == f"{100 * rate:.0f} %"
    # Point at a kept block, and choose the widest prefix.
    floor = seen.page.locator("#floor")
    floor.hover(position={"x": 3, "y": 3})
    assert re.match(r"Block 0: (kept for reuse|free)", seen.text("#floor-hint"))
    seen.page.locator("#tree-box [data-node]").first.click()
    assert "tokens 0 to" in seen.text("#tree-hint")
    seen.page.get_by_text("whole tree").click()
    seen.page.get_by_role("button", name="by tenant").click()
    assert set(seen.blocks()) == {"free", "default"}
    assert seen.text("#tenants").count("default") == 1


def test_a_prefix_is_chosen_however_long_the_button_is_held(tiny, opened) -> None:
    """News that come meanwhile do not take away what was pressed."""
    tiny.complete(f"{PROMPT * 3}Is it held?", max_tokens=2)
    seen = opened(tiny.url)
    seen.until("document.querySelectorAll('#tree-box [data-node]').length > 0")
    assert not seen.page.locator("#tree-up").is_visible()
    seen.page.locator("#tree-box [data-node]").first.hover()
    seen.page.mouse.down()
    for _ in range(2):
        with seen.page.expect_response("**/dashboard/state"):
            pass
    seen.page.mouse.up()
    seen.page.wait_for_selector("#tree-up:not([hidden])")


def test_the_tree_is_drawn_anew_unless_the_first_button_is_held(tiny, opened) -> None:
    """A press whose end the page is not told of, as a menu took it, does not stop the drawing."""
    tiny.complete(f"{PROMPT * 3}Is it drawn?", max_tokens=2)
    seen = opened(tiny.url)
    seen.until("document.querySelectorAll('#tree-box [data-node]').length > 0")
    drawn = "!document.querySelector('#tree-box svg').dataset.old"

    def press(button: int) -> None:
        seen.page.locator("#tree-box svg").dispatch_event("pointerdown", {"button": button})
        seen.page.evaluate("document.querySelector('#tree-box svg').dataset.old = 'yes'")

    press(2)
    seen.until(drawn)
    for end in ("contextmenu", "blur", "pointercancel"):
        press(0)
        seen.page.evaluate("document.querySelector('#theme').click()")
        assert not seen.page.evaluate(drawn), "it was drawn anew under the button"
        seen.page.evaluate(f"void dispatchEvent(new Event('{end}'))")
        seen.until(drawn)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
def test_it_fits_and_can_be_read(tiny, opened, scheme: str, viewport: dict[str, int]) -> None:
    """Nothing is wider than the screen, and text stands out from its page by 4.5 to 1 (WCAG 2.1, AA)."""
    tiny.complete(PROMPT, max_tokens=2)
    seen = opened(tiny.url, viewport=viewport, color_scheme=scheme)
    seen.until("document.querySelectorAll('#charts .chart').length == 6")
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    assert seen.page.evaluate("document.documentElement.dataset.theme") == scheme
    poor = seen.page.evaluate(CONTRAST)
    assert poor == []


def test_a_theme_that_was_chosen_stays(tiny, opened) -> None:
    seen = opened(tiny.url, color_scheme="light")
    for expected in ("light", "dark"):
        seen.page.locator("#theme").click()
        assert seen.page.evaluate("document.documentElement.dataset.theme") == expected
    seen.page.reload()
    seen.until("document.documentElement.dataset.theme == 'dark'")


def test_a_key_is_asked_for_and_kept_in_the_tab(start_server, qwen_path: Path, tmp_path: Path, opened) -> None:
    path = tmp_path / "keys.toml"
    path.write_text('[tenants.alice]\nkeys = ["sk-alice"]\n[tenants.operator]\nkeys = ["sk-operator"]\nadmin = true\n')
    server = start_server(
        *(str(qwen_path), "--kv-cache-memory-bytes", "1MiB", "--threads", "1", "--api-keys", str(path))
    )
    try:
        seen = opened(server.url)
        seen.page.wait_for_selector("#login:not([hidden])")
        assert not seen.page.locator("#page").is_visible()
        seen.page.fill("#key", "sk-alice")
        seen.page.click("#login button")
        seen.until("document.querySelector('#why').textContent.includes('admin')")
        seen.page.fill("#key", "sk-operator")
        seen.page.click("#login button")
        seen.page.wait_for_selector("#page:not([hidden])")
        assert not any("sk-" in url for url in seen.asked), "a key is never part of an address"
        assert seen.page.evaluate("localStorage.length") == 0
        seen.page.reload()
        seen.page.wait_for_selector("#page:not([hidden])")
        seen.page.click("#leave")
        seen.page.wait_for_selector("#login:not([hidden])")
        assert seen.page.evaluate("sessionStorage.length") == 0
    finally:
        server.stop()


def test_a_server_that_went_away_is_said_to_be_gone(start_server, qwen_path: Path, browser) -> None:
    server = start_server(str(qwen_path), "--kv-cache-memory-bytes", "1MiB", "--threads", "1")
    seen = Opened(browser, server.url)
    seen.until("document.querySelector('#status').dataset.state == 'live'")
    server.stop()
    seen.until("document.querySelector('#status').dataset.state == 'stale'")
    assert "no news for" in seen.text("#status")
    seen.context.close()


def test_a_hundred_thousand_blocks(start_server, qwen_path: Path, opened) -> None:
    """Under load, what is drawn still adds up to the pool."""
    flags = ("--kv-cache-memory-bytes", "205MiB", "--block-size", "8", "--threads", "1")
    server = start_server(str(qwen_path), *flags)
    ended = threading.Event()

    def ask() -> None:
        with httpx.Client(timeout=60) as client:
            while not ended.is_set():
                body = {"prompt": PROMPT * 4, "max_tokens": 60, "ignore_eos": True}
                client.post(f"{server.url}/v1/completions", json=body).raise_for_status()

    threads = [threading.Thread(target=ask) for _ in range(3)]
    try:
        total = sum(server.blocks().values())
        assert total > 100_000
        for thread in threads:
            thread.start()
        seen = opened(server.url, viewport=PHONE)
        seen.until("+document.querySelector('#floor-legend [data-state=shared]')?.dataset.blocks > 0")
        assert sum(seen.blocks().values()) == total
        width, height = seen.page.evaluate("(({width, height}) => [width, height])(document.querySelector('#floor'))")
        assert width * height >= total
        seen.context.close()
    finally:
        ended.set()
        for thread in threads:
            thread.join()
        server.stop()


SYSTEM = "You are the assistant of a library. You answer in one sentence and name the shelf of each book. " * 3


class Load:
    """Three clients that ask one thing after the other; `head` is what their system prompts begin with."""

    def __init__(self, url: str) -> None:
        self.head = ""
        self._url = url
        self._ended = threading.Event()
        self._asked = count()
        self._threads = [threading.Thread(target=self._ask) for _ in range(3)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        with httpx.Client(timeout=60) as client:
            while not self._ended.is_set():
                number = next(self._asked)
                system = f"{self.head.format(number // 60 % 60, number % 60)}{SYSTEM}"
                said = [{"role": "system", "content": system}, {"role": "user", "content": f"Where is book {number}?"}]
                body = {"messages": said, "max_tokens": 4, "temperature": 0}
                client.post(f"{self._url}/v1/chat/completions", json=body).raise_for_status()

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()


def test_a_timestamp_at_the_head_of_the_system_prompt(start_server, comes_true, opened) -> None:
    """Field case H1, live, with the default model and text shown: the rate falls, and the timestamp is named."""
    server = start_server("--kv-cache-memory-bytes", "96MiB", "--threads", "2", "--show-prompt-text")

    def settled() -> float:
        """The hit rate of the last five seconds that are over; 0.5 before there are any."""
        series = server.http.get("/dashboard/state").json()["series"]["recent"]
        return ([0.5, 0.5] + [rate for rate in series.get("hit_rate", []) if rate is not None])[-2]

    seen, load = opened(server.url), Load(server.url)
    try:
        assert comes_true(lambda: settled() > 0.7, 60)
        assert seen.page.locator("#misses [data-kind=clock]").count() == 0
        # With text shown, prefixes are named by how they begin; as yet all begin alike.
        label = "document.querySelector('#tree-box [data-node]')?.getAttribute('aria-label')"
        seen.until(f"{label}?.includes('assistant of a library')")
        load.head = "It is 12:{:02}:{:02}. "
        assert comes_true(lambda: settled() < 0.35, 60)
        seen.until("document.querySelectorAll('#misses [data-kind=clock]').length == 1")
        named = seen.text("#misses [data-kind=clock]")
        assert named.startswith("A timestamp (second) in the system prompt")
        assert re.search(r"For example 12:\d\d:\d\d and later 12:\d\d:\d\d", named)
        # "… % now, LOW % to HIGH %": what the server says by now is on the page with its next news.
        range_of = (
            "document.querySelector('[data-chart=hit_rate] .caption').textContent.match(/([\\d.]+) % to ([\\d.]+) %/)"
        )
        seen.until(f"+({range_of} ?? [])[1] < 35")
        assert float(seen.page.evaluate(range_of)[2]) > 70
        seen.context.close()
    finally:
        load.end()
        server.stop()


#: The elements whose own text is too near in brightness to the nearest background that is painted.
CONTRAST = """() => {
  const parse = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const light = ([r, g, b]) => {
    const straight = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [x, y, z] = [r, g, b].map((v) => straight(v / 255));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const [r, g, b, a = 1] = parse(getComputedStyle(at).backgroundColor);
      if (a > 0) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const element of document.querySelectorAll("header *, main *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || element.closest("svg") || !element.checkVisibility()) continue;
    const [one, other] = [light(parse(getComputedStyle(element).color)), light(behind(element))].sort((x, y) => y - x);
    const ratio = (one + 0.05) / (other + 0.05);
    if (ratio < 4.5) poor.push(`${ratio.toFixed(2)} ${element.textContent.trim().slice(0, 40)}`);
  }
  return poor;
}"""
