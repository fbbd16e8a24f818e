"""Data and maps that go wrong, where workers can import them without the tests themselves."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time


class Unloadable(Exception):
    """Pickles, and does not come back."""

    def __init__(self, one, two):
        super().__init__(f"{one} {two}")


class Unsendable(Exception):
    """Does not pickle."""

    def __init__(self, text):
        super().__init__(text)
        self.lock = threading.Lock()


class Silent(Exception):
    """Can not even say what it is."""

    def __str__(self):
        raise RuntimeError("no text")


class Exiting(Exception):
    """Ends whoever unpickles it."""

    def __reduce__(self):
        return sys.exit, (0,)


def raise_error():
    raise ValueError("boom")


def raise_unloadable():
    raise Unloadable("boom", "twice")


def raise_unsendable():
    raise Unsendable("boom")


def raise_exiting():
    raise Exiting("boom")


def raise_silent():
    raise Silent


def raise_interrupt():
    raise KeyboardInterrupt


def exit_0():
    sys.exit(0)


def exit_3():
    sys.exit(3)


def end_0():
    os._exit(0)


def end_7():
    os._exit(7)


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def crash():
    os.kill(os.getpid(), signal.SIGSEGV)


def leave_children():
    for _ in range(2):
        multiprocessing.get_context("fork").Process(target=sleep, daemon=True).start()
    threading.Thread(target=sleep, daemon=True).start()
    os.kill(os.getpid(), signal.SIGKILL)


def close_files():
    os.closerange(3, 256)


def kill_template():
    os.kill(os.getppid(), signal.SIGKILL)
    sleep()


def sleep():
    time.sleep(3600)


def nothing():
    pass


class Array:
    """A value that goes wrong when it is made an array."""

    def __init__(self, fault):
        self.fault = fault

    def __array__(self, dtype=None, copy=None):
        self.fault()
        raise AssertionError("the fault has passed")


class Item:
    """An item that goes wrong when it is unpacked."""

    def __init__(self, fault):
        self.fault = fault

    def __reduce__(self):
        return call, (self.fault,)


def call(fault):
    fault()
    raise AssertionError("the fault has passed")


class Data:
    """Items 0 to n - 1, of which one goes wrong; ``place`` tells where."""

    def __init__(self, place, fault, at, num_items=7):
        self.place, self.fault, self.at, self.num_items = place, fault, at, num_items

    def __len__(self):
        return self.num_items

    def __getitem__(self, index):
        if index == self.at:
            if self.place == "load":
                self.fault()
            if self.place == "encode":
                return {"value": Array(self.fault)}
            if self.place == "unpack":
                return Item(self.fault)
        return {"value": index}

    def map(self, features):
        if self.place == "map" and features["value"] == self.at:
            self.fault()
        return features


def items(place, fault, at, num_items=7):
    """The same, one after the other."""
    data = Data(place, fault, at, num_items)
    for index in range(num_items):
        if place == "source" and index == at:
            fault()
        yield data[index]
