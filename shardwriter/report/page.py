"""The report as one HTML file: no network, no scripts, light and dark, and fit to print."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from shardwriter.formats.text import clean
from shardwriter.reading.pictures import Sample
from shardwriter.report.page_view import page_view
from shardwriter.storage.choose import storage_for
from shardwriter.storage.local import storage_errors

_POLICY = (
    "default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; "
    "form-action 'none'"
)


def write_page(
    report: Mapping[str, Any], path: str | os.PathLike[str], *, samples: Sequence[Sample] = ()
) -> None:
    """Write the report as a page; the file appears whole, and replaces one that is there.

    Args:
        report: The JSON document; sections that it lacks are left out.
        path: The file, or a URL.
        samples: Pictures to show, as many of them as a page should hold.

    Raises:
        StorageError: The file can not be written.
    """
    path = os.fspath(path)
    data = page_html(report, samples).encode("utf-8")
    storage = storage_for(path)
    folder, name = os.path.split(path)
    working = path
    if not storage.appears_whole:
        working = os.path.join(folder, f".{name}.{os.getpid()}.partial")
    with storage_errors(path):
        try:
            file = storage.create(working)
            try:
                file.write(data)
                storage.sync(working)
            finally:
                file.close()
            if working != path:
                storage.publish(working, path)
        except BaseException:  # Ctrl-C too: no half of a page
            if working != path:
                storage.delete(working)
            raise


def page_html(report: Mapping[str, Any], samples: Sequence[Sample] = ()) -> str:
    """Return the page."""
    # Nobody who wants no page should wait for it.
    from jinja2 import DictLoader, Environment, StrictUndefined
    from markupsafe import Markup

    def escape_controls(value: Any) -> Any:
        return clean(value) if type(value) is str else value

    here = files("shardwriter.report")
    css = here.joinpath("page.css").read_text(encoding="utf-8")
    templates = {
        name: here.joinpath(name).read_text(encoding="utf-8")
        for name in ("page.html", "page_parts.html")
    }
    environment = Environment(
        loader=DictLoader(templates),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=escape_controls,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["code"] = _code
    environment.filters["breakable"] = _breakable
    digest = base64.b64encode(hashlib.sha256(css.encode("utf-8")).digest()).decode("ascii")
    return environment.get_template("page.html").render(
        page_view(report, samples), css=Markup(css), policy=_POLICY.format(digest=digest)
    )


def _breakable(name: str) -> Any:
    """Return a name that may break behind its separators, and not inside of a word."""
    from markupsafe import Markup, escape

    return Markup("<wbr>").join(escape(part) for part in re.split(r"(?<=[/._-])", clean(name)))


def _code(text: str) -> Any:
    """Return a sentence with what stands between backticks as code."""
    from markupsafe import Markup, escape

    parts = [escape(clean(part)) for part in text.split("`")]
    if len(parts) % 2 == 0:
        return Markup("`").join(parts)
    marked = (Markup("<code>{}</code>").format(p) if k % 2 else p for k, p in enumerate(parts))
    return Markup("").join(marked)
