"""The dashboard in a real browser: by keyboard, in dark and light, the playground streaming.

Needs Debian's chromium and chromium-driver; scripts/test installs them where it may.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from tests.fakes.engines import EngineProcess
from tests.fakes.gateway import Gateway, gateway, until
from tests.http.raw_connection import chat

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
WAIT_S = 20
SECOND = """
[[models]]
name = "second"
default_version = "7"
context_tokens_max = 1_000
output_tokens_max = 100
[[models.versions]]
version = "7"
attached = [{{ url = "{url}", model = "chat" }}]
"""

pytestmark = [
    pytest.mark.real_time(timeout_s=120),
    pytest.mark.slow,
    pytest.mark.skipif(
        BROWSER is None or DRIVER is None,
        reason="needs a browser (on Debian: apt-get install chromium chromium-driver)",
    ),
]


@contextmanager
def browser(*flags: str) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER or ""
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--window-size=1280,1100",
        *flags,
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


def log_in(driver: webdriver.Chrome, admin: object, admin_key: str) -> None:
    """By keyboard alone: the field has the focus, Enter sends it."""
    driver.get(f"http://{admin}/")
    driver.switch_to.active_element.send_keys(admin_key, Keys.ENTER)
    wait(driver, lambda: driver.title.startswith("Overview"))


def wait(driver: webdriver.Chrome, condition: Callable[[], object]) -> None:
    WebDriverWait(driver, WAIT_S).until(lambda _: condition())


def shows(driver: webdriver.Chrome, page: str) -> bool:
    return driver.title.startswith(page)


def complaints(driver: webdriver.Chrome) -> list[str]:
    """What the browser said of scripts, styles and requests that were blocked or missing."""
    log = driver.get_log("browser")  # type: ignore[no-untyped-call]
    return [entry["message"] for entry in log if "favicon" not in entry["message"]]


async def test_an_admin_looks_around_and_asks_two_models(
    tmp_path: Path, paced: EngineProcess, fast: EngineProcess
) -> None:
    async with gateway(tmp_path, paced, more=SECOND.format(url=fast.base_url), ready=2) as inferd:
        request_id = await some_traffic(inferd)

        def look() -> None:
            with browser() as driver:
                log_in(driver, inferd.admin, inferd.admin_key)
                assert "chat-1-a1" in driver.page_source
                driver.save_screenshot(str(tmp_path / "overview.png"))
                driver.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
                assert driver.switch_to.active_element.text == "Skip to the content"
                for page in ("Usage", "Requests", "Batches", "Keys", "Audit", "Playground"):
                    driver.find_element(By.LINK_TEXT, page).send_keys(Keys.ENTER)
                    wait(driver, partial(shows, driver, page))
                    current = driver.find_element(By.CSS_SELECTOR, "[aria-current=page]")
                    assert current.text == page
                    driver.save_screenshot(str(tmp_path / f"{page.lower()}.png"))
                ask_both(driver)
                driver.save_screenshot(str(tmp_path / "playground.png"))
                driver.find_element(By.LINK_TEXT, "Requests").click()
                driver.find_element(By.NAME, "id").send_keys(request_id, Keys.ENTER)
                wait(driver, partial(shows, driver, "Request ·"))
                assert request_id in driver.page_source
                driver.save_screenshot(str(tmp_path / "why.png"))
                assert complaints(driver) == []

        await asyncio.to_thread(look)
        rows = await inferd.rows()
    asked = [row for row in rows if row.key_id == "dashboard"]
    assert sorted(row.model for row in asked) == ["chat", "second"]
    assert {row.team for row in asked} == {"search"}


async def some_traffic(inferd: Gateway) -> str:
    """Answers, refusals and samples, so that there is something to see; the id of one answer."""
    await until(lambda: inferd.app.node.history.of("chat@1"))
    async with asyncio.TaskGroup() as group:
        answers = [
            group.create_task(_answer(inferd, chat(max_tokens=number, stream=True)))
            for number in range(2, 14)
        ]
        group.create_task(_answer(inferd, chat(max_tokens=0)))
        group.create_task(_answer(inferd, chat(model="unknown")))
    for _ in range(3):
        inferd.app.node.history.sample()
    await inferd.rows()
    return answers[-1].result()


async def _answer(inferd: Gateway, body: dict[str, object]) -> str:
    async with inferd.post(body) as answer:
        await answer.read()
        return str(answer.headers["x-request-id"])


def ask_both(driver: webdriver.Chrome) -> None:
    tokens = driver.find_element(By.NAME, "max_tokens")
    tokens.clear()
    tokens.send_keys("12")
    driver.find_element(By.XPATH, "//button[text()='Ask both']").click()
    notes = driver.find_elements(By.CSS_SELECTOR, ".note")
    wait(driver, lambda: all("12 tokens" in note.text for note in notes))
    texts = [output.text for output in driver.find_elements(By.TAG_NAME, "output")]
    assert all(texts)
    assert all("req_" in note.text for note in notes)


async def test_the_overview_renews_itself_and_says_when_it_cannot(
    tmp_path: Path, fast: EngineProcess
) -> None:
    async with gateway(tmp_path, fast) as inferd:

        def look(stop: Callable[[], object]) -> None:
            with browser("--force-dark-mode") as driver:
                log_in(driver, inferd.admin, inferd.admin_key)
                live = driver.find_element(By.CSS_SELECTOR, "[data-live]")
                before = live.text
                wait(driver, lambda: live.text != before)  # the time of the look
                stop()
                wait(driver, lambda: "stale" in (live.get_attribute("class") or ""))

        loop = asyncio.get_running_loop()
        await asyncio.to_thread(look, lambda: loop.call_soon_threadsafe(inferd.app.stop))
