"""The pictures of the page that the docs show, of `tandem demo` as it runs.

python -m tests.journeys.pictures FOLDER
"""

import re
import signal
import subprocess
import sys
from pathlib import Path

from selenium.webdriver.common.keys import Keys

from tests.journeys.browser import Browser, browsing

SECONDS = 40
WIDE, TALL, PHONE = (1180, 860), (1180, 2400), (390, 844)
QUESTIONS = ("Tell me a story about a cat.", "And then?")
DEMO = (sys.executable, "-u", "-m", "tandem", "demo", "--no-browser", "--keep")


def take(browser: Browser, address: str, folder: Path, demo: subprocess.Popen[str]) -> None:
    browser.resize(*WIDE)
    browser.colours("light")
    browser.open(address)
    browser.one(".map a")
    assert demo.stdout is not None
    for line in demo.stdout:
        if "is dead" in line:
            break
    browser.one(".map .flow.now")
    browser.one(".u-legend")
    browser.picture(folder / "page-cluster.png")
    for line in demo.stdout:
        if "What to try next" in line:
            break
    browser.one("nav a", "Requests").click()
    rows = browser.driver.execute_script(
        "return [...document.querySelectorAll('td a')].map((each) => each.href)"
    ) or [browser.one("td a").get_attribute("href")]
    browser.open(rows[-1])
    browser.one("h2", "Where it could have gone")
    browser.picture(folder / "page-request.png")
    take_what_if(browser, folder)
    take_try(browser, folder)
    browser.one("nav a", "Cluster").click()
    browser.one(".map a")
    browser.resize(*PHONE)
    browser.colours("dark")
    browser.picture(folder / "page-phone.png")


def take_what_if(browser: Browser, folder: Path) -> None:
    browser.one("nav a", "Cluster").click()
    form = browser.one("form[class=row]", "Simulate")
    form.find_element("css selector", "select").send_keys("round-robin")
    minutes = form.find_element("css selector", "input[name=minutes]")
    minutes.clear()
    minutes.send_keys("0.5")
    browser.one("button", "Simulate").click()
    browser.one("section[aria-labelledby=what-if] td", "round-robin")
    # All of it at once.
    browser.resize(*TALL)
    browser.one_picture("section[aria-labelledby=what-if]", folder / "page-what-if.png")
    browser.resize(*WIDE)


def take_try(browser: Browser, folder: Path) -> None:
    browser.one("nav a", "Try").click()
    for question in QUESTIONS:
        browser.one("textarea[name=question]").send_keys(question + Keys.ENTER)
        browser.one(".turn:last-child .note", "Where did the time go?")
    browser.one(".turn:last-child .prompt summary").send_keys(Keys.ENTER)
    browser.one(".turn:last-child .tokens mark")
    browser.picture(folder / "page-try.png")


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    command = [*DEMO, "--seconds", str(SECONDS)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as demo,
        browsing() as browser,
    ):
        assert demo.stdout is not None
        try:
            printed = ""
            for line in demo.stdout:
                printed += line
                if found := re.search(r"http://\S+key=\S+", line):
                    take(browser, found[0], folder, demo)
                    break
            else:
                raise SystemExit(printed)
        finally:
            demo.send_signal(signal.SIGINT)


if __name__ == "__main__":
    main()
