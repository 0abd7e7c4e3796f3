"""The pictures of the page that the docs show, of `tandem demo` as it runs.

python -m tests.journeys.pictures FOLDER
"""

import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.journeys.browser import Browser, browsing

SECONDS = 40
DEMO = (sys.executable, "-u", "-m", "tandem", "demo", "--no-browser", "--keep")


def take(browser: Browser, address: str, folder: Path, demo: subprocess.Popen[str]) -> None:
    browser.resize(1180, 860)
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


def main() -> None:
    folder = Path(sys.argv[1])
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
