"""A real Chromium without a window, and what tests do with it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

PATIENCE_S = 30.0
# Roles of the accessibility tree that somebody operates.
OPERATED = {"button", "link", "textbox", "combobox", "checkbox", "spinbutton", "searchbox"}


def chromium() -> tuple[str, str]:
    """The browser and its driver. Skips the test where they are not installed."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("chromium and chromedriver are not installed")
    return browser, driver


class Browser:
    """One window."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        # Another fragment alone would keep the document.
        self.driver.get("about:blank")
        self.driver.get(url)

    def resize(self, width: int, height: int) -> None:
        """To a viewport of this size, however small a window may be."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def colours(self, scheme: str) -> None:
        """As somebody has set it who prefers `light` or `dark`."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def all(self, css: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def texts(self, css: str) -> list[str]:
        """What all these elements show at one moment: the page may draw anew at the next."""
        script = "return [...document.querySelectorAll(arguments[0])].map((each) => each.innerText)"
        return list(self.driver.execute_script(script, css))

    def one(self, css: str, text: str = "") -> WebElement:
        """The first element that has this text, once it is there."""

        def found(_: object) -> WebElement | bool:
            for element in self.all(css):
                if text in element.get_attribute("textContent"):
                    return element
            return False

        # What is gone once it is looked at was of the view before.
        looks = WebDriverWait(
            self.driver, PATIENCE_S, 0.05, ignored_exceptions=[StaleElementReferenceException]
        )
        return looks.until(found, f"no {css} with {text!r}")

    def gone(self, css: str) -> None:
        """Until there is no such element."""
        WebDriverWait(self.driver, PATIENCE_S, 0.05).until(lambda _: not self.all(css))

    def problems(self) -> list[str]:
        """What the console has complained about since the last look."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def nameless(self) -> list[str]:
        """Roles of what can be operated and has no name for a screen reader."""
        tree = self.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})
        return [
            node["role"]["value"]
            for node in tree["nodes"]
            if not node.get("ignored")
            and node["role"]["value"] in OPERATED
            and not node.get("name", {}).get("value")
        ]

    def overflow_px(self) -> int:
        """By how much the document is wider than what is seen of it."""
        script = (
            "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        return int(self.driver.execute_script(script))

    def overlapping(self, css: str) -> list[str]:
        """Texts of these elements that share a place with one that comes after them."""
        script = """
            const boxes = [...document.querySelectorAll(arguments[0])]
                .map((each) => [each.textContent, each.getBoundingClientRect()]);
            return boxes.filter(([, a], place) => boxes.slice(place + 1).some(([, b]) =>
                a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom))
                .map(([text]) => text);"""
        return list(self.driver.execute_script(script, css))

    def picture(self, file: Path) -> None:
        """Raises `OSError` where it cannot be written."""
        file.write_bytes(self.driver.get_screenshot_as_png())

    def one_picture(self, css: str, file: Path) -> None:
        """Of one element alone."""
        file.write_bytes(self.one(css).screenshot_as_png)


@contextmanager
def browsing() -> Iterator[Browser]:
    browser, driver = chromium()
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    window = webdriver.Chrome(options, webdriver.ChromeService(driver))
    try:
        yield Browser(window)
    finally:
        window.quit()
