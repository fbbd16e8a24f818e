"""Rows and class folders to write datasets from, and the files that are written."""

from __future__ import annotations

from pathlib import Path


def rows(stop, start=0):
    return [{"x": i, "text": f"row {i}" * (i % 5), "label": i % 3} for i in range(start, stop)]


def class_folders(folder, data_dir, names):
    picture = next(Path(data_dir).rglob("*.png")).read_bytes()
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "1.png").write_bytes(picture)
    return folder


def files_of(folder, *endings):
    """All files of a folder, by name; with endings only such."""
    return {
        p.name: p.read_bytes()
        for p in sorted(Path(folder).iterdir())
        if p.is_file() and (not endings or p.name.endswith(endings))
    }
