"""The page in a headless Chromium: it chats, shows the engine, sleeps and wakes, asks for keys, and stays at home.

After every test the browser's console is empty of errors, and no request has left the server.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lullm import AsyncLLMEngine, EngineConfig

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
playwright.expect.set_options(timeout=20_000)  # a loaded machine
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")
HOSTILE = "<img src=x onerror=alert(1)> **bold** `<b>code</b>`\n- <script>alert(2)</script>\n```\n<i>fenced</i>\n```"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as running:
        # Chromium's own sandbox needs rights that containers lack.
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(browser) -> Iterator[Callable[..., Any]]:
    """`visit(server, **options of the browser's context)`: the server's page, opened."""
    contexts, troubles = [], []

    def open_page(server: Any, expected: str | None = None, **options: Any) -> Any:
        context = browser.new_context(**options)
        context.set_default_timeout(20_000)
        contexts.append(context)
        page = context.new_page()

        def hear(message: Any) -> None:
            if message.type in ("error", "warning") and not (expected and expected in message.text):
                troubles.append(message.text)

        page.on("console", hear)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("dialog", lambda dialog: troubles.append(f"a dialog: {dialog.message}"))
        page.on("request", lambda r: None if r.url.startswith(server.url + "/") else troubles.append(r.url))
        page.goto(server.url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert troubles == []


@pytest.fixture(scope="module")
def demo(start_for_module):
    return start_for_module(AsyncLLMEngine(EngineConfig(num_gpu_blocks_override=300, enable_sleep_mode=True)))


def ask(page: Any, text: str) -> Any:
    """Send a message; the last answer, once it is there."""
    page.get_by_label("Message").fill(text)
    page.keyboard.press("Enter")
    return page.get_by_label("Answer").last


def wait_for(page: Any, selector: str, text: str | re.Pattern[str]) -> None:
    playwright.expect(page.locator(selector)).to_contain_text(text)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_chat_in_both_colour_schemes(visit, demo, scheme):
    page = visit(demo, color_scheme=scheme)
    wait_for(page, "#state", "awake")
    wait_for(page, "#model", "demo")
    red = int(page.evaluate("getComputedStyle(document.body).backgroundColor").split("(")[1].split(",")[0])
    assert (red > 200) == (scheme == "light")
    answer = ask(page, "What is 17 + 25?")
    playwright.expect(answer.locator(".foot")).to_contain_text("tokens")
    assert "42" in answer.inner_text()
    answer = ask(page, "What is 1 + 2?")
    playwright.expect(answer.locator(".foot")).to_contain_text("prompt tokens cached")
    page.get_by_role("button", name="Answer again").click()
    playwright.expect(page.get_by_label("Answer")).to_have_count(2)
    page.get_by_role("button", name="New chat").click()
    playwright.expect(page.get_by_label("Answer")).to_have_count(0)


def test_the_map_moves_and_can_be_read_by_keyboard(visit, demo):
    page = visit(demo)
    wait_for(page, "#usage", "0.0 %")
    drawn = "document.getElementById('map').toDataURL()"
    before = page.evaluate(drawn)
    page.evaluate(  # until the page closes: one request may end between two looks of the page, which it did
        """() => void (async () => { for (;;) await fetch("/v1/completions", {method: "POST", body: JSON.stringify(
            {prompt: "Once upon a time", n: 3, max_tokens: 900, ignore_eos: true})}) })()"""
    )
    playwright.expect(page.locator("#map")).to_have_attribute("aria-label", re.compile(r" [1-9]\d* in use, [1-9]"))
    assert page.evaluate(drawn) != before
    wait_for(page, "#requests", "running")
    page.locator("#map").focus()
    page.keyboard.press("ArrowRight")
    wait_for(page, "#map-note", "Block 0")
    page.keyboard.press("ArrowRight")
    wait_for(page, "#map-note", "Block 1")
    wait_for(page, "#rate", re.compile("^[1-9]"))
    wait_for(page, "#latency-now", "ms")


def test_sleep_and_wake_buttons(visit, demo):
    page = visit(demo, expected="503")  # the chat while it sleeps
    page.get_by_role("button", name="What would it free?").click()
    wait_for(page, "#sleep-note", "Would free")
    page.get_by_role("button", name="Sleep", exact=True).click()
    wait_for(page, "#sleep-note", "Released")
    wait_for(page, "#state", "asleep, level 1")
    assert demo.engine.sleep_state == "weights_offloaded"
    failure = ask(page, "Hello!").locator(".failed")
    playwright.expect(failure).to_contain_text("asleep")
    page.get_by_role("button", name="Wake up").click()
    wait_for(page, "#sleep-note", "Awake after")
    wait_for(page, "#state", "awake")
    assert demo.engine.sleep_state == "awake"


def test_token_probabilities(visit, demo):
    page = visit(demo)
    page.get_by_text("Settings").click()
    page.get_by_label("Alternatives per token").fill("3")
    page.get_by_label("Seed").fill("5")
    answer = ask(page, "What is 17 + 25?")
    playwright.expect(answer.locator(".foot")).to_contain_text("tokens")
    token = answer.locator(".tokens button").first
    token.click()
    playwright.expect(answer.locator(".alternatives tr")).to_have_count(3)
    playwright.expect(answer.locator(".alternatives .chosen")).to_have_count(1)
    token.press("Enter")
    playwright.expect(answer.locator(".alternatives")).to_have_count(0)


def test_what_a_model_says_stays_text(visit, start, scripted):
    page = visit(start(scripted(HOSTILE)))
    answer = ask(page, "hi")
    playwright.expect(answer.locator(".foot")).to_contain_text("tokens")
    assert answer.locator("img, script, b, i").count() == 0
    playwright.expect(answer.locator("strong")).to_have_text("bold")
    playwright.expect(answer.locator("p code")).to_have_text("<b>code</b>")
    playwright.expect(answer.locator("li")).to_have_text("<script>alert(2)</script>")
    playwright.expect(answer.locator("pre")).to_have_text("<i>fenced</i>")


def test_stop_ends_the_request(visit, start, scripted):
    server = start(scripted())
    page = visit(server)
    ask(page, "hold")
    server.engine.wait_held()
    page.get_by_role("button", name="Stop").click()
    playwright.expect(page.locator(".failed")).to_have_text("stopped")
    page.wait_for_timeout(100)
    assert len(server.engine.aborted) == 1


def test_keys_are_asked_for_and_kept_in_memory_only(visit, start, scripted):
    server = start(scripted(enable_sleep_mode=True), api_keys=("secret",), admin_keys=("root",))
    page = visit(server, expected="401")
    dialog = page.get_by_role("dialog")
    for key in ("wrong", "secret"):
        playwright.expect(dialog).to_contain_text("API key")
        page.get_by_label("Key", exact=True).fill(key)
        page.keyboard.press("Enter")
    wait_for(page, "#state", "awake")
    playwright.expect(ask(page, "hi").locator(".foot")).to_contain_text("tokens")
    page.get_by_role("button", name="Sleep", exact=True).click()
    playwright.expect(dialog).to_contain_text("Admin key")
    page.get_by_label("Key", exact=True).fill("root")
    page.get_by_role("button", name="Use").click()
    wait_for(page, "#sleep-note", "Released")
    assert server.engine.sleeping_tags
    assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie, location.search]") == [
        0, 0, "", ""
    ]  # fmt: skip
    page.reload()
    playwright.expect(dialog).to_contain_text("API key")
    page.keyboard.press("Escape")
    wait_for(page, "#state", "key needed")


def sse(*deltas: dict) -> str:
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


def test_thoughts_are_folded_and_tool_calls_answered(visit, start, scripted):
    page = visit(start(scripted()))
    answers = iter(
        [
            sse(
                {"reasoning": "let me "},
                {"reasoning_content": "see"},
                {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "weather", "arguments": '{"city":'}}]},
                {"tool_calls": [{"index": 0, "function": {"arguments": '"Oslo"}'}}]},
            ),
            sse({"content": "<think>rain"}, {"content": "</think>It rains."}),
        ]
    )
    bodies = []

    def answer(route: Any) -> None:
        bodies.append(route.request.post_data_json)
        route.fulfill(content_type="text/event-stream", body=next(answers))

    page.route("**/v1/chat/completions", answer)
    wait_for(page, "#state", "awake")
    ask(page, "weather?")
    playwright.expect(page.locator("details.thinking")).to_contain_text("let me see")
    assert not page.locator("details.thinking").first.evaluate("each => each.open")
    wait_for(page, ".call pre", '{"city":"Oslo"}')
    page.get_by_label("Result of weather").fill("rain")
    page.get_by_role("button", name="Send results").click()
    playwright.expect(page.get_by_label("Answer").last.locator("p").last).to_have_text("It rains.")
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}}
    assert bodies[1]["messages"][1:] == [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]


def test_settings_are_sent_as_they_are_given(visit, start, scripted):
    server = start(scripted())
    page = visit(server)
    wait_for(page, "#state", "awake")
    page.get_by_text("Settings").click()
    for label, value in (("Temperature", "0.25"), ("Top p", "0.5"), ("Most tokens", "7"), ("Seed", "3")):
        page.get_by_label(label).fill(value)
    page.get_by_label("System prompt").fill("be brief")
    answer = ask(page, "hi")
    playwright.expect(answer.locator(".foot")).to_contain_text("ended: length")
    [(_, params, _)] = server.engine.seen
    assert (params.temperature, params.top_p, params.max_tokens, params.seed) == (0.25, 0.5, 7, 3)


def test_it_fits_a_phone(visit, start, scripted):
    page = visit(start(scripted()), viewport={"width": 360, "height": 700})
    wait_for(page, "#state", "awake")
    for name, shown, hidden in (("Engine", "#engine", "#chat"), ("Chat", "#chat", "#engine")):
        page.get_by_role("button", name=name, exact=True).click()
        playwright.expect(page.locator(shown)).to_be_visible()
        playwright.expect(page.locator(hidden)).to_be_hidden()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
