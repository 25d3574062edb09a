"""Safe markup: what is text stays text.

In: strings, many of them written by a model and therefore untrusted. Out: HTML. A plain str is always escaped when it meets
markup; only a Markup passes unchanged, and only the drawing and page functions make one.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

# Controls (newline and tab are kept), direction overrides that reorder a line on screen, lone surrogates that no encoder accepts,
# and the non-characters that end a well-formed document.
UNPRINTABLE = re.compile(
    "[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufdd0-\ufdef\ufeff\ufffe\uffff]"
)


class Markup(str):
    """A string that is already markup."""

    __slots__ = ()


def visible(text: str) -> str:
    """Unprintable characters by name, so that a reader sees them and they cannot act: chr(27) -> "[U+001B]"."""
    return UNPRINTABLE.sub(lambda found: f"[U+{ord(found[0]):04X}]", text)


def escape(text: str) -> Markup:
    """Text as markup: special characters escaped, unprintable ones shown."""
    return Markup(html.escape(visible(text), quote=True))


def markup(part: str) -> Markup:
    """`part` itself when it is Markup, escaped otherwise."""
    return part if isinstance(part, Markup) else escape(part)


def join(parts: Iterable[str], between: str = "") -> Markup:
    """Concatenate text and markup."""
    return Markup(between.join(markup(part) for part in parts))


def tag(name: str, inside: str | Iterable[str] = "", **attributes: str) -> Markup:
    """One element. Attribute names lose a trailing underscore (class_) and swap others for dashes; values are escaped."""
    pairs = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items())
    content = markup(inside) if isinstance(inside, str) else join(inside)
    return Markup(f"<{name}{pairs}>{content}</{name}>")


def shortened(text: str, most: int) -> str:
    """At most `most` characters, saying how many are left out."""
    left = len(text) - most
    return text if left <= 0 else f"{text[:most]}\u2026 ({left:,} more characters)"
