"""A page taken apart by Python's own parser: what it shows, and what it would load."""

from __future__ import annotations

import re
from html.parser import HTMLParser

# Attributes whose value a browser fetches, and elements that exist to load or to run something.
LOADING = {"src", "srcset", "href", "xlink:href", "data", "action", "formaction", "poster", "background"}
ACTIVE = {"script", "link", "iframe", "object", "embed", "base", "img", "audio", "video", "source", "form"}
# What an HTML5 page need not close.
VOID = {"meta", "br", "hr", "path", "use", "rect"}


class Page(HTMLParser):
    """What a page has: its text without styles, cells by row, and everything that could load something."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text = ""
        self.rows: list[list[str]] = []
        self.loads: list[str] = []
        self.policy = ""
        self.unclosed: list[str] = []
        self.feed(html)
        self.close()
        self.rows = [[cell.strip() for cell in row] for row in self.rows]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.unclosed.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if named.get("http-equiv") == "Content-Security-Policy":
            self.policy = named.get("content") or ""
        self.loads += [tag] if tag in ACTIVE else []
        self.loads += [f"{name}={value}" for name, value in attrs if _loads(name, value or "")]
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th") and self.rows:
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        # What stands open inside of it may be left open, as <li> and <td>.
        assert tag in self.unclosed, f"</{tag}> closes nothing"
        while self.unclosed.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self.unclosed and self.unclosed[-1] == "style":
            self.loads += re.findall(r"@import.*|url\((?!#).*?\)", data)
            return
        self.text += data
        if {"td", "th"} & set(self.unclosed):
            self.rows[-1][-1] += data


def _loads(name: str, value: str) -> bool:
    if name.startswith("on") or "javascript:" in value:
        return True
    if name in LOADING:
        return not value.startswith("#")
    return name == "style" and bool(re.search(r"url\((?!#)", value))
