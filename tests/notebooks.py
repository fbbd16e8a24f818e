"""A Jupyter kernel that runs cells, for tests."""

from __future__ import annotations

import time
from contextlib import contextmanager

import pytest


class Kernel:
    """A kernel of this Python."""

    def __init__(self, manager, client):
        self.manager = manager
        self.client = client

    def start(self, code):
        """Begin to run a cell."""
        return self.client.execute(code, store_history=False)

    def wait_for_output(self, text):
        """Return once an output of the running cell holds a text."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            message = self.client.get_iopub_msg(timeout=60)
            if text in str(message["content"]):
                return
        raise AssertionError(f"no output with {text!r}")

    def finish(self, cell):
        """Return the outputs of a cell: its messages but the states of the kernel."""
        found = []
        while True:
            message = self.client.get_iopub_msg(timeout=60)
            if message["parent_header"].get("msg_id") != cell:
                continue
            if message["msg_type"] == "status":
                if message["content"]["execution_state"] == "idle":
                    return found
            elif message["msg_type"] != "execute_input":
                found.append((message["msg_type"], message["content"]))

    def run(self, code):
        """Run a cell, and return its outputs."""
        return self.finish(self.start(code))

    def interrupt(self):
        """Stop the running cell, as the button does."""
        self.manager.interrupt_kernel()


@contextmanager
def running_kernel():
    """Yield a kernel; skip the test where Jupyter is not installed."""
    manager = pytest.importorskip("jupyter_client.manager")
    pytest.importorskip("ipykernel")
    kernel, client = manager.start_new_kernel(kernel_name="python3")
    try:
        yield Kernel(kernel, client)
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)
