"""The built site in a real browser: the interactive page works, and no page overflows, breaks or complains.

`tox -e browser` builds the site and runs this. It needs Chromium, found on the path or by PAGEDREF_CHROMIUM.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SITE = Path(os.environ.get("PAGEDREF_SITE", Path(__file__).parents[2] / "docs" / "_build" / "html"))
NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = os.environ.get("PAGEDREF_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: tox -e browser")
if CHROMIUM is None:
    pytest.skip("needs Chromium on the path, or PAGEDREF_CHROMIUM", allow_module_level=True)
if not (SITE / "index.html").exists():
    pytest.skip("needs the built site: tox -e docs", allow_module_level=True)

NO_PAGES = {"_modules", "_static"}
PAGES = sorted(str(path.relative_to(SITE)) for path in SITE.rglob("*.html") if not NO_PAGES & set(path.parts))
SIZES = {"desktop": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}

# Elements that stick out of the window, unless an ancestor scrolls them; and pictures that did not load.
TROUBLE = """() => {
  const wide = [];
  const scrolls = (node) => {
    for (let up = node.parentElement; up; up = up.parentElement) {
      const style = getComputedStyle(up);
      if (["BODY", "HTML"].includes(up.tagName)) return false;
      if (["auto", "scroll", "hidden"].includes(style.overflowX)) return true;
    }
    return false;
  };
  for (const node of document.querySelectorAll("article *")) {
    const box = node.getBoundingClientRect();
    if (box.width && box.right > innerWidth + 1 && !scrolls(node))
      wide.push(node.tagName + "." + node.className + ": " + (node.textContent || "").trim().slice(0, 40));
  }
  if (document.documentElement.scrollWidth > innerWidth + 1) wide.push("the page scrolls sideways");
  const broken = [...document.images].filter((x) => x.complete && !x.naturalWidth);
  return [...wide.slice(0, 5), ...broken.map((x) => "broken picture " + x.src)];
}"""


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One Chromium for all tests."""
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


def opened(browser: Any, page: str, size: str, scheme: str) -> tuple[Any, list[str]]:
    """Open a page and collect what it complains about."""
    context = browser.new_context(viewport=SIZES[size], color_scheme=scheme)
    tab = context.new_page()
    said: list[str] = []
    tab.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.goto((SITE / page).as_uri())
    return tab, said


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("page", PAGES)
def test_no_page_overflows_or_breaks(browser: Any, page: str, size: str) -> None:
    scheme = "dark" if size == "phone" else "light"
    tab, said = opened(browser, page, size, scheme)
    trouble = tab.evaluate(TROUBLE)
    shown = tab.evaluate("document.documentElement.dataset.theme")
    tab.context.close()
    assert not trouble, f"{page} at {size} width: {trouble}"
    assert shown == scheme
    assert not said, f"{page}: {said}"


@pytest.fixture(params=SIZES)
def walk(request: pytest.FixtureRequest, browser: Any) -> Iterator[Any]:
    """The interactive page."""
    tab, said = opened(browser, "interactive.html", request.param, "light")
    yield tab
    assert not said
    tab.context.close()


def step_of(tab: Any) -> int:
    return int(tab.get_attribute("#walk", "data-step"))


def test_forward_and_back(walk: Any) -> None:
    assert step_of(walk) == 0
    assert walk.locator(".walk-frame.walk-free").count() == 8
    assert walk.get_by_text("◀ Back").is_disabled()
    seen = [walk.inner_text(".walk-pool")]
    last = int(walk.get_attribute(".walk-slider", "max"))
    for at in range(1, last + 1):
        walk.click("text=Next ▶")
        assert step_of(walk) == at
        assert walk.inner_text(".walk-count") == f"{at + 1} / {last + 1}"
        assert walk.locator(".walk-changed").count() > 0, "a step that changes nothing teaches nothing"
        seen.append(walk.inner_text(".walk-pool"))
        assert "= 8" in seen[-1]
    assert walk.get_by_text("Next ▶").is_disabled()
    for at in reversed(range(last)):
        walk.click("text=◀ Back")
        assert step_of(walk) == at
        assert walk.inner_text(".walk-pool") == seen[at]


def test_keyboard_and_slider(walk: Any) -> None:
    walk.focus("#walk")
    for key, at in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("Home", 0), ("ArrowLeft", 0)):
        walk.keyboard.press(key)
        assert step_of(walk) == at
    walk.keyboard.press("End")
    assert step_of(walk) == int(walk.get_attribute(".walk-slider", "max"))
    walk.fill(".walk-slider", "5")
    assert step_of(walk) == 5
    assert walk.inner_text(".walk-title") == "Fork"


def test_an_entry_lights_its_frame(walk: Any) -> None:
    walk.fill(".walk-slider", "2")
    entry = walk.locator(".walk-entry").first
    entry.focus()
    frame = entry.get_attribute("data-frame")
    assert walk.locator(f".walk-frame.walk-lit[data-frame='{frame}']").count() == 1
    assert walk.locator(".walk-frame.walk-lit").count() == 1
