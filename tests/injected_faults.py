"""Data, a map and a storage that go wrong when that is switched on from outside.

A switch in the environment, and not in the code or the options: the run that fails and the run that
goes on with it are the same job. Workers inherit it, and import all this by its name.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from collections import Counter
from functools import partial

import faulty
import numpy as np

import shardwriter as sw
from shardwriter.errors import SchemaConflict, SourceChanged, StorageError
from shardwriter.storage import LocalStorage

SWITCH = "SHARDWRITER_TEST_FAULTS"  # JSON: place -> fault, and where in that place
LOADS = "SHARDWRITER_TEST_LOADS"  # a file: a line for every item that is loaded
NUM_ITEMS = 18


def switch(monkeypatch, **faults):
    """Switch faults on: ``place=(fault, 3)`` or ``place=(fault, [3, 4])``; all others are off."""
    monkeypatch.setenv(SWITCH, json.dumps(faults))


def fault_at(place, at):
    """The name of the fault that is switched on for this place; None for none."""
    told = os.environ.get(SWITCH)
    if told:
        fault, where = json.loads(told).get(place, ("nothing", []))
        if at == where or (isinstance(where, list) and at in where):
            return fault
    return None


def strike(place, at):
    """Let the fault happen that is switched on for this place."""
    fault = fault_at(place, at)
    if fault is not None:
        (globals().get(fault) or getattr(faulty, fault))()


# -- faults that only make sense here --------------------------------------------------------------


def stop():
    """Stop, until somebody says SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)


def asleep():
    print("asleep", file=sys.stderr, flush=True)
    faulty.sleep()


def raise_full():
    raise StorageError("no space left on device", path="/somewhere")


def raise_conflict():
    raise SchemaConflict("the types do not go together", feature="value")


def raise_changed():
    raise SourceChanged("it is not what it was when it was listed")


# -- data ------------------------------------------------------------------------------------------


class Array:
    """A value that is made an array when it is encoded."""

    def __init__(self, index):
        self.index = index

    def __array__(self, dtype=None, copy=None):
        strike("encode", self.index)
        return np.arange(self.index, self.index + 40, dtype=np.int64)


def loaded(index):
    """An item: a label with few values, a number, and an array."""
    if LOADS in os.environ:
        with open(os.environ[LOADS], "ab", buffering=0) as file:
            file.write(b"%d\n" % index)
    strike("load", index)
    return {"value": index, "label": f"class {index % 3}", "array": Array(index)}


class Data:
    """Items that any worker can load."""

    def __len__(self):
        return NUM_ITEMS

    def __getitem__(self, index):
        return loaded(index)


class Held(Data):
    """The same, of a dataset that can not be sent: its items are."""

    def __init__(self):
        self.lock = faulty.Unsendable("x").lock


def items():
    """The same, one after the other."""
    for index in range(NUM_ITEMS):
        strike("items", index)
        item = loaded(index)
        if fault_at("sending", index):
            item["lock"] = faulty.Unsendable("x").lock
        yield item


def mapped(features):
    """The map; every 7th item gives no record."""
    index = features["value"]
    strike("map", index)
    if index % 7 == 6:
        return sw.SKIP
    if fault_at("type", index):
        return {**features, "value": f"{index}"}
    return {name: features[name] for name in ("value", "label", "array")}


data = Data()


# -- storage ---------------------------------------------------------------------------------------


class Storage:
    """The local file system; a call that is of a place can go wrong, the first of them is 0."""

    appears_whole = False
    num_at_once = 1

    def __init__(self):
        self.local = LocalStorage()
        self.calls = Counter()

    def __reduce__(self):
        return Storage, ()

    def strike(self, place):
        number = self.calls[place]
        self.calls[place] += 1
        strike(place, number)

    def create(self, path, *, new=False):
        return File(self, path, self.local.create(path, new=new))

    def append(self, path, num_bytes):
        if _is_shard(path):
            self.strike("cut")
        return File(self, path, self.local.append(path, num_bytes))

    def sync(self, path):
        if _is_shard(path):
            self.strike("seal")
        self.local.sync(path)

    def sync_directory(self, directory):
        self.local.sync_directory(directory)

    def publish(self, source, target):
        target_name = os.path.basename(target)
        if _is_shard(source):
            self.strike("publish")
        elif target_name.endswith(".manifest.json"):
            self.strike("manifest")
        elif target_name in ("base", "commit.json"):
            self.strike(target_name.partition(".")[0])
        self.local.publish(source, target)

    def make_directory(self, path):
        self.local.make_directory(path)

    def remove_directory(self, path):
        self.local.remove_directory(path)

    def is_directory(self, path):
        return self.local.is_directory(path)

    def size(self, path):
        return self.local.size(path)

    def crc32c(self, path):
        return self.local.crc32c(path)

    def read(self, path):
        return self.local.read(path)

    def open(self, path):
        return self.local.open(path)

    def list(self, directory):
        return self.local.list(directory)

    def delete(self, path):
        folder, name = os.path.split(path)
        is_committed = os.path.exists(os.path.join(folder, "commit.json"))
        if name == "commit.json" and is_committed:
            self.strike("clean")
        elif name.startswith(("mark-", "journal-")) and not is_committed:
            self.strike("forget")
        self.local.delete(path)


class File:
    def __init__(self, storage, path, file):
        self.storage, self.is_shard, self.file = storage, _is_shard(path), file

    def write(self, data):
        if self.is_shard:
            self.storage.strike("append")
        self.file.write(data)

    def close(self):
        self.file.close()


def _is_shard(path):
    return os.path.basename(path).startswith("shard-")


# -- the command line ------------------------------------------------------------------------------


def command():
    """The command line, with this storage, and a mark after every item."""
    from shardwriter import writing
    from shardwriter.cli import main

    importlib.import_module("shardwriter.writing.publication")
    sys.modules["shardwriter.writing.publication"].LocalStorage = Storage
    writing.RunOptions = partial(writing.RunOptions, mark_s=0)
    main()
