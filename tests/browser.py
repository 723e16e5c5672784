"""Pages in headless Chromium: opened from disk or loopback, clicked, measured, photographed, their errors collected."""

import base64
import os
import shutil
from pathlib import Path

from needs import missing
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.ui import WebDriverWait

SCREENSHOTS = Path(os.environ.get("FEDBC_SCREENSHOTS") or Path(__file__).resolve().parents[1] / "build" / "screenshots")
QUIET = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)
PATIENCE = 60
DESK, PHONE = 1280, 390

MARKS = """return [...document.querySelectorAll(`[data-chart="${arguments[0]}"] svg g.role-mark`)].reduce((n, g) =>
  n + [...g.children].filter(e => e.getAttribute("d") || e.tagName !== "path").length, 0);"""


def programs():
    """Chromium and its driver."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if not browser or not driver:
        missing(
            "there is no Chromium (Debian's packages are `chromium` and `chromium-driver`)", "FEDBC_REQUIRE_BROWSER"
        )
    return browser, driver


class Browser:
    """One browser for all tests of a process; `open` begins anew."""

    def __init__(self, folder):
        program, driver = programs()
        options = webdriver.ChromeOptions()
        options.binary_location = program
        for argument in (*QUIET, f"--user-data-dir={folder}"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options, webdriver.ChromeService(driver))

    def close(self):
        self.driver.quit()

    def open(self, place, *, width=DESK, height=900, dark=False):
        """Open a file or an address, and wait until its charts are drawn."""
        self.errors()
        self._tell("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.dark(dark)
        self.driver.get(place.resolve().as_uri() if isinstance(place, Path) else place)
        self.wait_for_charts()

    def dark(self, yes=True):
        """What the reader's system prefers."""
        value = "dark" if yes else "light"
        self._tell("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def wait_for_charts(self):
        """Until every chart is drawn, in the colours that are preferred now."""
        mode = "matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light'"
        self.wait(f"return !document.getElementById('page-data') || document.documentElement.dataset.drawn == ({mode})")

    def wait(self, script, *arguments):
        """Until a script's answer is truthy; it is returned."""
        return WebDriverWait(self.driver, PATIENCE, 0.05).until(lambda d: d.execute_script(script, *arguments))

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def errors(self):
        """What the console has said since the last call: errors and warnings."""
        return [e["message"] for e in self.driver.get_log("browser") if e["level"] in ("SEVERE", "WARNING")]

    def charts(self):
        """The names of the page's charts."""
        return self.run("return [...document.querySelectorAll('[data-chart]')].map(e => e.dataset.chart)")

    def marks(self, chart):
        """How many marks (points, lines, bars, texts) a chart shows."""
        return self.run(MARKS, chart)

    def sideways(self):
        """By how many pixels the page is wider than the window."""
        return self.run("return document.documentElement.scrollWidth - window.innerWidth")

    def click(self, selector):
        element = self.driver.find_element(By.CSS_SELECTOR, selector)
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()

    def choose(self, selector, value):
        """Choose a value of a list."""
        Select(self.driver.find_element(By.CSS_SELECTOR, selector)).select_by_value(value)

    def text(self, selector="body"):
        return self.driver.find_element(By.CSS_SELECTOR, selector).text

    def screenshot(self, name):
        """The whole page, kept as a build artefact."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.run("scrollTo(0, 0)")
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
        path = SCREENSHOTS / f"{name}.png"
        path.write_bytes(base64.b64decode(shot["data"]))
        return path

    def _tell(self, command, **arguments):
        self.driver.execute_cdp_cmd(command, arguments)
