"""Which features of a source's items are images, for those that are to be made anew."""

from __future__ import annotations

from contextlib import suppress

from shardwriter.errors import OptionError, SourceError
from shardwriter.formats.encoded import require_pillow
from shardwriter.sources.source import RecordSource, Source
from shardwriter.writing.images import ImageEditor
from shardwriter.writing.options import DatasetOptions


def image_editor(source: Source, options: DatasetOptions) -> ImageEditor | None:
    """Return what makes the images of a source's items anew; None where they are passed through."""
    if options.images is None:
        return None
    return ImageEditor(options.images, _image_names(source, options))


def _image_names(source: Source, options: DatasetOptions) -> set[str]:
    types = dict(options.schema)
    if isinstance(source, RecordSource):
        types |= {name: summary.type for name, summary in source.summaries.items()}
    else:
        with suppress(SourceError):  # then only a map makes records of these items
            types |= source.plan
    return {name for name, found in types.items() if found.encoding == "image"}


def check_images(source: Source, options: DatasetOptions) -> None:
    """Refuse early what can not be made anew.

    Raises:
        OptionError: No feature of the source is an image, or its records are only copied.
        MissingExtra: Pillow is not installed.
    """
    require_pillow()
    if isinstance(source, RecordSource) and options.map is None:
        raise OptionError(
            "--resize, --max-side and --quality: finished records are copied, and nothing looks "
            "into them",
            hint="a map has them decoded; one that returns what it is given is enough",
        )
    if not _image_names(source, options) and _is_planned(source):
        raise OptionError(
            f"--resize, --max-side and --quality: a source of kind {source.kind} gives no images "
            "here",
            hint="--schema NAME=image says which feature is one",
        )


def _is_planned(source: Source) -> bool:
    try:
        return bool(source.plan)
    except SourceError:
        return False
