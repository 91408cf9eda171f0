"""Chromium without a window: a page as it is rendered, and everything that it tried to load."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from html import unescape
from pathlib import Path

TIMEOUT_S = 240
WIDTH = 800
# Of the browser itself, which else calls home.
QUIET = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--no-default-browser-check"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-extensions", "--disable-default-apps", "--disable-domain-reliability"),
)
# Put at the end of a copy of the page: writes down what is seen, once all that it loads is there or is not.
PROBE = """<script>
const rows = (node) => {
  const range = document.createRange();
  range.selectNodeContents(node.firstChild);
  return new Set([...range.getClientRects()].map((box) => box.top)).size;
};
addEventListener("load", () => {
  const boxes = [...document.querySelectorAll("svg")].map((svg) => svg.getBoundingClientRect());
  const seen = {
    text: document.body.innerText,
    page_width: document.documentElement.scrollWidth,
    svgs: boxes.map((box) => [box.width, box.height]),
    svg_text: [...document.querySelectorAll("svg text")].map((text) => text.textContent),
    broken: [...document.querySelectorAll("th, td")]
      .filter((cell) => /^\\w{1,8}$/.test(cell.innerText) && rows(cell) > 1)
      .map((cell) => cell.innerText),
    ink: getComputedStyle(document.body).color,
    paper: getComputedStyle(document.body).backgroundColor,
    loaded: performance.getEntriesByType("resource").map((entry) => entry.name),
  };
  document.body.innerHTML = "";
  document.body.append(JSON.stringify(seen));
});
</script>"""


@dataclass(frozen=True)
class Seen:
    """What a page looks like."""

    text: str
    page_width: float
    # Width and height of each picture, as it stands there.
    svgs: list[list[float]]
    svg_text: list[str]
    # Cells of one short word that did not fit into a line.
    broken: list[str]
    # Of the text and what is behind it.
    ink: str
    paper: str
    # Addresses that it asked for, whether it got them or not.
    loaded: list[str]


class Browser:
    """Opens pages, with a network that takes nothing: also Chromium itself would call home."""

    def __init__(self, folder: Path) -> None:
        found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        assert found, "found no Chromium on the PATH, expected one; install the package chromium"
        self._program = found
        self._folder = folder

    def look_at(self, page: Path, *, dark: bool = False) -> Seen:
        """Return what is seen of a page, of which a copy is probed that has no policy against scripts."""
        html = re.sub(r"<meta http-equiv[^>]*>", "", page.read_text("utf-8"))
        probed = self._folder / "probed.html"
        probed.write_text(html + PROBE, "utf-8")
        dom = self._run(probed, "--dump-dom", dark=dark)
        body = re.search(r"<body[^>]*>(.*)</body>", dom, re.S)
        assert body, dom[-2000:]
        return Seen(**json.loads(unescape(body[1])))

    def title_of(self, page: Path) -> str:
        """Return the title that a page has, as it is, when everything in it that could run has run."""
        found = re.search(r"<title>(.*?)</title>", self._run(page, "--dump-dom"), re.S)
        return unescape(found[1]) if found else ""

    def _run(self, page: Path, *arguments: str, dark: bool = False) -> str:
        command = [
            self._program,
            *QUIET,
            f"--user-data-dir={self._folder / 'profile'}",
            "--proxy-server=http://127.0.0.1:1",
            "--proxy-bypass-list=<-loopback>",
            f"--window-size={WIDTH},1200",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            *arguments,
            page.as_uri(),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
        return done.stdout
