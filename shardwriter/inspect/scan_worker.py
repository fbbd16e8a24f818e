"""A process of :mod:`~shardwriter.inspect.scan_pool`: it scans the files it is sent."""

from __future__ import annotations

import os
import pickle
import socket
import time
from typing import Final

from shardwriter.inspect.scan import scan_file
from shardwriter.writing.failures import pack_failure
from shardwriter.writing.messages import Channel

FILE: Final = 1  # to it: pickled path, options
SCANNED: Final = 11  # from it: a pickled FileScan
READ: Final = 12  # bytes of the file that were read so far
FAILED: Final = 13

_TELL_S: Final = 0.1


def main(descriptor: int) -> None:
    """Scan files until the program closes the socket, however it does."""
    channel = Channel(socket.socket(fileno=descriptor))
    told_at = 0.0

    def progress(num_bytes: int) -> None:
        nonlocal told_at
        now = time.monotonic()
        if now - told_at > _TELL_S:
            told_at = now
            try:
                channel.send(READ, num_bytes.to_bytes(8, "little"))
            except OSError:
                os._exit(1)  # the program is gone: nobody waits for the rest of this file

    try:
        while (message := channel.receive()) is not None:
            path, options = pickle.loads(message[1])
            try:
                scan = scan_file(path, options, progress=progress)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is for the program
                channel.send(FAILED, pack_failure(error))
            else:
                channel.send(SCANNED, pickle.dumps(scan, 5))
    except OSError:
        return
