"""The page as a person meets it: in a browser, before real processes."""

from __future__ import annotations

import io
import json
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the gateway extra")

from mesh import Client
from tests.gateway.support import gateway_for, wait_until_ready
from tests.gateway.support_page import answer, ask, chromium, expect, live, page_of
from tests.support.eventually import eventually
from tests.support.processes import Mesh, mesh_in, wait_for_nodes

HOSTILE = "<img src=x onerror=alert(1)>" + "x" * 30
NODE = ("--served-name", "acme/phi", "--synthetic", "step_base_s=0.01")
KEY = "sk-browser-0123456789"
PHONE = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def client(broker: str) -> Iterator[Client]:
    with Client(broker) as client:
        yield client


@pytest.fixture
def page(browser: Any, url: str) -> Iterator[Any]:
    with page_of(browser, url) as page:
        yield live(page)


def test_a_chat_streams_its_answer_and_says_who_gave_it(page: Any, client: Client) -> None:
    page.evaluate(_RECORD)
    ask(page, "Tell me a story.", temperature="0", max_tokens="40")
    expect(answer(page).locator(".turn-footer")).to_contain_text("tokens/s")
    assert len(set(page.evaluate("lengths"))) > 5  # it grew before one's eyes

    facts = answer(page).locator(".turn-footer").inner_text()
    assert re.match(r"n[12] · first token \d+ ms · 40 tokens · ", facts)
    first = client.chat([{"role": "user", "content": "Tell me a story."}], temperature=0, max_tokens=40)
    assert answer(page).locator(".turn-text").text_content() == first.text

    ask(page, "Go on.")
    expect(answer(page).locator(".turn-footer")).to_contain_text("tokens/s")
    turns = [("user", "Tell me a story."), ("assistant", first.text), ("user", "Go on.")]
    second = client.chat([{"role": role, "content": text} for role, text in turns], temperature=0, max_tokens=40)
    assert answer(page).locator(".turn-text").text_content() == second.text


_RECORD = """() => {
  window.lengths = [];
  const record = () => lengths.push(document.querySelector(".turn.assistant .turn-text")?.textContent.length ?? 0);
  new MutationObserver(record).observe(document.querySelector("#turns"), {
    childList: true, subtree: true, characterData: true,
  });
}"""


def test_stop_cancels_the_request(page: Any, client: Client) -> None:
    ask(page, "Never end.", max_tokens="8000", temperature="0")
    expect(answer(page).locator(".turn-text")).not_to_be_empty()
    assert client.status().num_in_flight == 1
    page.click("#stop")

    eventually(lambda: client.status().num_in_flight == 0, within_s=2)
    expect(answer(page).locator(".turn-footer")).to_contain_text("stopped")
    expect(page.locator("#send")).to_be_visible()


def test_a_chat_needs_no_mouse_and_focus_can_be_seen(page: Any, client: Client) -> None:
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#prompt")).to_be_focused()
    page.keyboard.type("Never end.")
    page.keyboard.press("Enter")
    expect(answer(page).locator(".turn-text")).not_to_be_empty()
    page.keyboard.press("Escape")
    expect(answer(page).locator(".turn-footer")).to_contain_text("stopped")
    eventually(lambda: client.status().num_in_flight == 0, within_s=2)

    page.locator("#theme-button").focus()
    reached = set()
    for _ in range(20):
        page.keyboard.press("Tab")
        name, outline = page.evaluate(
            "() => { const a = document.activeElement; return [a.id || a.tagName + (a.dataset.copy ?? ''), "
            "getComputedStyle(a).outlineStyle]; }"
        )
        assert outline != "none" or name == "BODY", name
        reached.add(name)
    assert {"events", "new-chat", "turns", "prompt", "model", "send", "SUMMARY", "BUTTONcurl"} <= reached


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_it_all_without_scrolling_sideways_and_with_contrast(browser: Any, url: str, scheme: str) -> None:
    with page_of(browser, url, color_scheme=scheme, **PHONE) as page:
        live(page)
        ask(page, "w" * 300, max_tokens="30")
        expect(answer(page).locator(".turn-footer")).to_contain_text("30 tokens")
        page.click("#chat summary")
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        assert page.evaluate(_POOR_CONTRAST) == []
        expect(page.locator("html")).to_have_css("color-scheme", "light dark")
        page.click("#theme-button")
        page.click("#theme-button")
        expect(page.locator("html")).to_have_css("color-scheme", "dark")


_POOR_CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = (colour) => {  // https://www.w3.org/TR/WCAG22/#dfn-relative-luminance
    const [r, g, b] = rgba(colour).map((c) => c / 255)
      .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const colour = getComputedStyle(each).backgroundColor;
      if (rgba(colour)[3] === 255) return colour;
    }
    return "white";
  };
  const poor = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !element.checkVisibility({ visibilityProperty: true })) continue;
    const [a, b] = [luminance(getComputedStyle(element).color), luminance(ground(element))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) poor.push(`${ratio.toFixed(2)} ${texts.currentNode.data.slice(0, 30)}`);
  }
  return poor;
}"""


def test_a_request_copied_as_code_gives_the_same_answer(browser: Any, url: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    pytest.importorskip("openai", reason="needs the openai package")
    with page_of(browser, url, permissions=["clipboard-read", "clipboard-write"]) as page:
        live(page)
        ask(page, 'It\'s "quoted" \\n $HOME `x`\n§', temperature="0", max_tokens="12", system="Be brief.")
        expect(answer(page).locator(".turn-footer")).to_contain_text("tokens")
        text = answer(page).locator(".turn-text").text_content()
        code = {}
        for kind in ("curl", "openai", "mesh"):
            page.click(f"[data-copy={kind}]")
            expect(page.locator("#copied")).to_have_text("Copied")
            code[kind] = page.evaluate("navigator.clipboard.readText()")
            page.evaluate("navigator.clipboard.writeText('')")

    printed = subprocess.run(["sh", "-c", code["curl"]], stdout=subprocess.PIPE, check=True).stdout.decode()
    events = [json.loads(line[6:]) for line in printed.split("\n\n") if line.startswith("data: {")]
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events if event["choices"]) == text
    assert printed_by(code["openai"]) == f"{text}\n"
    assert printed_by(code["mesh"]).startswith(f"{text}\nn")  # and the name of the node


def printed_by(code: str) -> str:
    with redirect_stdout(io.StringIO()) as output:
        exec(compile(code, "copied", "exec"), {})
    return output.getvalue()


def test_the_key_is_asked_for_and_kept_in_its_tab(browser: Any, broker: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"alice {KEY}\n")
    with gateway_for(tmp_path, broker, "--api-key-file", str(keys)) as gateway:
        wait_until_ready(gateway.address)
        with page_of(browser, gateway.address, may_log=("401",)) as page:
            expect(page.locator("#key-message")).to_contain_text("those who have a key")
            page.keyboard.type("sk-wrong")
            page.keyboard.press("Enter")
            expect(page.locator("#key-message")).to_contain_text("not accepted: this API key is not known here")
            expect(page.locator("#status-text")).to_have_text("The key is not accepted")
            page.keyboard.press("Escape")
            expect(page.locator("#banner")).to_contain_text("not accepted")
            page.click("#banner-button")
            page.keyboard.type(KEY)
            page.keyboard.press("Enter")
            live(page)
            ask(page, "Hello!", max_tokens="3")
            expect(answer(page).locator(".turn-footer")).to_contain_text("3 tokens")
            expect(page.locator(".caller-name", has_text="gateway:alice")).to_be_visible()
            assert page.evaluate("[JSON.stringify(sessionStorage), JSON.stringify(localStorage), document.cookie]") == [
                f'{{"phi3-key":"{KEY}"}}', "{}", "",
            ]  # fmt: skip
            page.reload()
            live(page)


class Doomed:
    """A mesh of which tests kill one part after the other, and its page."""

    def __init__(self, browser: Any, folder: Path, mesh: Mesh) -> None:
        self.browser, self.folder, self.mesh = browser, folder, mesh
        self.nodes = [mesh.node(name, *NODE) for name in (HOSTILE, "b")]
        self.broker = mesh.broker("b1", *self.nodes)


@pytest.fixture(scope="module")
def doomed(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doomed]:
    folder = tmp_path_factory.mktemp("doomed")
    with mesh_in(folder) as mesh:
        doomed = Doomed(browser, folder, mesh)
        with Client(doomed.broker.address) as client:
            wait_for_nodes(client, 2)
        yield doomed


@pytest.mark.slow
def test_what_dies_is_said_to_be_dead_and_what_can_go_on_does(doomed: Doomed) -> None:
    with gateway_for(doomed.folder, doomed.broker.address) as gateway:
        wait_until_ready(gateway.address)
        with page_of(doomed.browser, gateway.address, may_log=("ERR_", "503")) as page:
            live(page)
            what_others_call_themselves_is_text(page)
            a_killed_node_turns_red_and_the_running_answer_completes(page, doomed)
            a_killed_broker_is_missed_and_found_again(page, doomed)
            gateway.process.send_signal(signal.SIGTERM)
            expect(page.locator("#status-text")).to_have_text("The gateway is gone")
            assert gateway.process.wait(10) == 0
            bind = gateway.address.removeprefix("http://")
            with gateway_for(doomed.folder, doomed.broker.address, "--bind", bind):
                live(page)


def what_others_call_themselves_is_text(page: Any) -> None:
    expect(page.locator(".node-name", has_text="<img")).to_have_text(HOSTILE)
    assert page.locator("main img, main script").count() == 0


def a_killed_node_turns_red_and_the_running_answer_completes(page: Any, doomed: Doomed) -> None:
    ask(page, "Survive.", temperature="0", max_tokens="150")
    expect(answer(page).locator(".turn-text")).not_to_be_empty()
    with Client(doomed.broker.address) as client:
        (name,) = [node.name for node in client.status().nodes if node.num_running]
        next(node for node in doomed.nodes if node.name == name).kill()
        lost = page.locator(".node", has=page.get_by_text(name, exact=True))
        expect(lost).to_have_attribute("data-state", "lost")
        expect(lost.locator(".state")).to_have_text("lost")
        expect(lost.locator(".state")).to_have_css("color", "rgb(191, 35, 35)")
        expect(answer(page).locator(".turn-footer")).to_contain_text("went on after 1 interruption")
        undisturbed = client.chat([{"role": "user", "content": "Survive."}], temperature=0, max_tokens=150)
    assert answer(page).locator(".turn-text").text_content() == undisturbed.text
    for _ in range(2):
        expect(page.locator("#events")).to_contain_text(f"{name} is lost: ")
        expect(page.locator("#events")).to_contain_text("1 running answer handed over to resume elsewhere")
        page.reload()  # whoever opens the page now is told as well


def a_killed_broker_is_missed_and_found_again(page: Any, doomed: Doomed) -> None:
    doomed.broker.kill()
    expect(page.locator("#status-text")).to_have_text("The broker does not answer")
    expect(page.locator("#banner")).to_contain_text("has heard nothing of the mesh")
    doomed.mesh.broker("b1", *doomed.nodes, bind=doomed.broker.address.removeprefix("tcp://"))
    live(page)
    expect(page.locator("#events")).to_contain_text("broker b1 does not answer")
