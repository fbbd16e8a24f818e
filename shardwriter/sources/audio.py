"""``audio``: WAV files in one folder per class, or WAV files without classes.

The bytes are written unchanged; rate, channels, bits and length come from the file's header. A
truncated file is an error of its item. Other audio files (FLAC, Ogg, MP3) are left out with a note.
"""

from __future__ import annotations

from typing import Any, Final

from shardwriter.formats import read_wav_header
from shardwriter.schema import FeatureType
from shardwriter.sources.class_folders import ClassFolders, FileItem, FileKind, has_files

KIND: Final = "audio"

_FILES: Final = FileKind("WAV file", "WAV files", "WAV files", frozenset({".wav", ".wave"}))
_OTHERS: Final = (".flac", ".mp3", ".ogg", ".opus", ".m4a", ".aac", ".aif", ".aiff", ".wma")
_INT: Final = FeatureType("int64", "int64", ())
_STRING: Final = FeatureType("bytes", "string", ())
_PLAN: Final = {
    "audio/bits_per_sample": _INT,
    "audio/channels": _INT,
    "audio/encoded": FeatureType("bytes", "bytes", ()),
    "audio/filename": _STRING,
    "audio/format": _STRING,
    "audio/num_frames": _INT,
    "audio/sample_rate": _INT,
}


class AudioFolder(ClassFolders):
    """WAV files in class folders.

    Args:
        root: The folder.
        skip_errors: As of :class:`ClassFolders`.

    Raises:
        SourceError: There are none, or there are WAV files in class folders and beside them.
    """

    kind = KIND

    def __init__(self, root: str, *, skip_errors: bool = False) -> None:
        super().__init__(root, _FILES, _PLAN, "audio", skip_errors=skip_errors)

    def features_of(self, item: FileItem, data: bytes) -> dict[str, Any]:
        """Return a file's bytes, and the facts of its header.

        Raises:
            ValueError: It is not a WAV file, or is truncated.
        """
        header = read_wav_header(data)
        return {
            "audio/bits_per_sample": header.bits_per_sample,
            "audio/channels": header.channels,
            "audio/encoded": data,
            "audio/filename": item.key,
            "audio/format": "wav",
            "audio/num_frames": header.num_frames,
            "audio/sample_rate": header.sample_rate,
        }


def others_in(root: str) -> str:
    """Return the endings of other audio files in a folder or below it, as text; "" for none."""
    found = [ending for ending in _OTHERS if has_files(root, frozenset({ending}))]
    return ", ".join(found)


def has_audio(root: str) -> bool:
    """Return whether there is a WAV file in the folder or below it, readable or not."""
    return has_files(root, _FILES.endings)
