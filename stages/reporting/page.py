"""The page: sections, tables and figures of one self-contained HTML file.

In: text and Markup. Out: Markup. The file loads nothing: its style sheet is page.css put inline, its pictures are inline SVG,
it runs no script, and its content policy forbids both, so text written by a model cannot fetch or run anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stages.reporting.markup import Markup, escape, join, tag

STYLE_SHEET = Path(__file__).with_name("page.css")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True, slots=True)
class Column:
    """A table column: its heading and whether its cells are numbers (set flush right)."""

    head: str
    numeric: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """One section: anchor, heading, the note beside it, and its content."""

    anchor: str
    heading: str
    note: str
    body: Markup


def document(title: str, summary: Markup, parts: Sequence[Part]) -> str:
    """The complete file."""
    links = [tag("a", part.heading, href=f"#{part.anchor}") for part in parts]
    body = [
        tag("header", [tag("h1", title), summary]),
        tag("nav", links, aria_label="Sections"),
        tag("main", [_section(part) for part in parts]),
    ]
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}"><meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>\n{STYLE_SHEET.read_text(encoding='utf-8')}</style>"
    )
    return f'<!doctype html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{join(body)}\n</body>\n</html>\n'


def _section(part: Part) -> Markup:
    heading = [tag("h2", part.heading), paragraph(part.note)]
    return Markup("\n" + tag("section", [tag("div", heading, class_="note"), tag("div", part.body, class_="body")], id=part.anchor))


def numeric(*heads: str) -> list[Column]:
    """Columns of numbers."""
    return [Column(head, numeric=True) for head in heads]


def paragraph(content: str) -> Markup:
    return tag("p", content)


def table(caption: str, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> Markup:
    """A table inside a box that scrolls by itself; the first cell of a row is its heading. ValueError on a ragged row."""
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(f"table '{caption}' got a row of {len(row)} cells, expected {len(columns)}: {list(row)!r}")
    head = tag("thead", tag("tr", [tag("th", column.head, scope="col", class_=_align(column)) for column in columns]))
    body = tag("tbody", [join(["\n", _row(row, columns)]) for row in rows])
    box = tag("div", tag("table", [head, body], aria_label=caption), class_="scroll", tabindex="0", role="region", aria_label=caption)
    return join([tag("p", caption, class_="caption"), box])


def _row(row: Sequence[str], columns: Sequence[Column]) -> Markup:
    heading = tag("th", row[0], scope="row", class_=_align(columns[0]))
    return tag("tr", [heading, *(tag("td", cell, class_=_align(column)) for cell, column in zip(row[1:], columns[1:], strict=True))])


def _align(column: Column) -> str:
    return "number" if column.numeric else "words"


def figure(drawing: str, caption: str, narrow: str | None = None) -> Markup:
    """A chart with its caption; `narrow` is the drawing for a phone when one does not serve both."""
    pictures = (
        [Markup(drawing)] if narrow is None else [tag("div", Markup(drawing), class_="wide"), tag("div", Markup(narrow), class_="narrow")]
    )
    return tag("figure", [*pictures, tag("figcaption", caption)])


def titled(heading: str, drawing: str, caption: str) -> Markup:
    """A chart under a heading of its own, for use among others."""
    return tag("div", [tag("h3", heading), figure(drawing, caption)])


def remark(content: str) -> Markup:
    """A line under a table, less prominent than text."""
    return tag("p", content, class_="remark")


def warning(content: Sequence[str]) -> Markup:
    """Something a reader must know before trusting the rest."""
    return tag("p", content, class_="warning")


def figures(items: Sequence[Markup]) -> Markup:
    """Charts side by side where there is room."""
    return tag("div", items, class_="figures")


def facts(items: Sequence[tuple[str, str, str]]) -> Markup:
    """Key figures: (name, value, remark)."""
    return tag(
        "dl",
        [tag("div", [tag("dt", name), tag("dd", [tag("b", value), tag("span", remark)])]) for name, value, remark in items],
        class_="facts",
    )


def folded(summary: str, content: Markup) -> Markup:
    """Content that opens on demand."""
    return tag("details", [tag("summary", summary), content])
