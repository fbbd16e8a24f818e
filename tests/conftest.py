"""Shared fixtures and settings."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from processes import MARK, children, marked, until
from sampling import SEED_VARIABLE, choose_seed

import shardwriter

settings.register_profile(
    "shardwriter",
    deadline=None,
    print_blob=True,
    derandomize=os.environ.get("CI") == "true",
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("shardwriter")


# A shell that runs a command in the background has it ignore Ctrl-C, nohup has it ignore SIGHUP,
# and all that the tests start would inherit that.
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(number) is signal.SIG_IGN:
        is_interrupt = number is signal.SIGINT
        signal.signal(number, signal.default_int_handler if is_interrupt else signal.SIG_DFL)

# Files outside tests/interop whose subject is another framework.
INTEROP = {"tests/docs/test_readme_readers.py"}


def pytest_configure() -> None:
    """Choose the seed before other processes are started for the tests."""
    choose_seed()


def pytest_report_header() -> str:
    """Name the seed of the cases that are drawn."""
    return f"{SEED_VARIABLE}={choose_seed()}, PYTHONHASHSEED={os.environ.get('PYTHONHASHSEED')}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of other frameworks, and let each of their files run in one process.

    Files of interop share what is slow to start: servers, clusters, answers of other loaders.
    """
    for item in items:
        path = item.path.relative_to(item.config.rootpath).as_posix()
        if path.startswith("tests/interop/") or path in INTEROP:
            item.add_marker("interop")
            if item.get_closest_marker("xdist_group") is None:
                item.add_marker(pytest.mark.xdist_group(item.path.stem))


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real-world files that SHARDWRITER_TEST_DATA names."""
    folder = os.environ.get("SHARDWRITER_TEST_DATA")
    if not folder:
        pytest.skip("SHARDWRITER_TEST_DATA does not name the folder with the test data")
    if not os.path.isdir(folder):
        pytest.skip(f"SHARDWRITER_TEST_DATA names {folder}, and there is no such folder")
    return Path(folder)


@pytest.fixture(scope="session")
def tf() -> Any:
    """TensorFlow, imported once; skipped where it is not installed."""
    return pytest.importorskip("tensorflow", reason="TensorFlow is not installed")


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A dataset ``t`` of 26 records of 100 bytes in 4 shards."""
    shardwriter.write([bytes([i]) * 100 for i in range(26)], tmp_path / "t@4")
    return tmp_path


@pytest.fixture(autouse=True)
def standard_streams() -> Iterator[None]:
    """A test that closes a standard stream gives its number to somebody else's file."""
    before = [os.fstat(number)[:3] for number in range(3)]
    yield
    assert [os.fstat(number)[:3] for number in range(3)] == before


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Mark the processes that the test starts; none may be left of them."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    before = children(os.getpid())
    yield mark
    until(lambda: not marked(mark))
    assert children(os.getpid()) == before


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files; none may be left."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    yield folder
    assert os.listdir(folder) == []
