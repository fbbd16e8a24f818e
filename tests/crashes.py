"""A storage that ends a write at any of its calls, and the records that are written to it."""

from __future__ import annotations

import os

from shardwriter.schema.record_stats import RecordStats
from shardwriter.storage.protocol import LocalStorage
from shardwriter.writing.journal import Snapshot

SCHEMA = {"features": {}}
NO_SNAPSHOT = Snapshot(1, False, 0, {}, {}, RecordStats.of("label", 2).to_state(), None, 0)
OLD = [b"old %d" % n for n in range(7)]
NEW = [b"the new record %d" % n for n in range(10)]


class Crash(BaseException):
    """What a test raises in place of the end of a process."""


class CrashingStorage(LocalStorage):
    """Raises at the k-th call; with ``late`` after the call has done its work."""

    def __init__(self, crash_at=None, *, late=False):
        super().__init__()
        self.calls = []
        self._crash_at = crash_at
        self._late = late

    def _call(self, name, *args, **options):
        self.calls.append((name, *map(os.path.basename, args)))
        crash = self._crash_at is not None and len(self.calls) > self._crash_at
        if crash and not self._late:
            raise Crash
        result = getattr(super(), name)(*args, **options)
        if crash:
            raise Crash
        return result

    def create(self, path, *, new=False):
        return self._call("create", path, new=new)

    def sync(self, path):
        return self._call("sync", path)

    def sync_directory(self, directory):
        return self._call("sync_directory", directory)

    def publish(self, source, target):
        return self._call("publish", source, target)

    def delete(self, path):
        return self._call("delete", path)
