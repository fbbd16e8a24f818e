"""The README's examples run as printed, and its tables list all options."""

from __future__ import annotations

import datetime
import decimal
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from paths import ROOT

import shardwriter

README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A folder with the files that the README's examples use."""
    script = ROOT / "scripts" / "make_demo_data.py"
    subprocess.run([sys.executable, script, tmp_path], check=True, capture_output=True)
    (tmp_path / "shapes").rename(tmp_path / "photos")
    (tmp_path / "mydata.py").write_text(
        "def train():\n"
        "    for i in range(20):\n"
        "        yield {'width': i, 'height': 2, 'label': i % 3}\n"
        "def add_area(features):\n"
        "    return {**features, 'area': features['width'] * features['height']}\n"
    )
    (tmp_path / "log.csv").write_text("0,1.5\n1,2.5\n")
    (tmp_path / "old.csv").write_bytes("name\nJürgen\n".encode("latin-1"))
    (tmp_path / "run.csv").write_text("id,score,note\n1,0.5,x\n2,-,y\n")
    if find_spec("pyarrow") is not None:
        write_trips(tmp_path / "trips.parquet")
    return tmp_path


def write_trips(path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    start = datetime.datetime(2024, 1, 2, 3, 4, 5)
    columns = {"start": [start], "day": [start.date()], "fare": [decimal.Decimal("1.10")]}
    pq.write_table(pa.table(columns), path)


def test_python_examples_run_as_printed(workplace: Path) -> None:
    code = "\n".join(blocks("python"))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=workplace,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "1000 records" in done.stdout
    assert "OK: 1,000 records in 16 shards" in done.stdout


def test_beam_examples_run_as_printed(workplace: Path) -> None:
    pytest.importorskip("apache_beam", reason="Apache Beam is not installed")
    code = "\n".join(blocks("py"))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=workplace, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "999.0\n"
    shardwriter.verify(workplace / "out" / "rows@16")


def test_commands_run_as_printed(workplace: Path) -> None:
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    commands = [line for line in lines if line.startswith("shard")]
    assert len(commands) == 33
    if find_spec("pyarrow") is None:
        commands = [command for command in commands if ".parquet" not in command]
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=workplace,
            env={"PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"


def test_scripts_of_the_first_screen_are_there() -> None:
    for name in re.findall(r"^scripts/\w+", README, re.MULTILINE):
        assert (ROOT / name).stat().st_mode & 0o111, name


@pytest.mark.parametrize(
    ("command", "end"),
    [("write", "Results go to stdout"), ("stats", "What some readers do")],
)
def test_the_table_of_options_is_that_of_the_command(command: str, end: str) -> None:
    from typer.main import get_command

    from shardwriter.cli import app

    params = get_command(app).commands[command].params  # type: ignore[attr-defined]
    real = {opt for p in params for opt in p.opts if opt.startswith("--")} - {"--help"}
    name = {"write": "write", "stats": "shard-stats"}[command]
    table = README[README.index(f"| option of `{name}`") : README.index(end)]
    listed = {
        name
        for row in re.findall(r"^\| (`--.*?) \|", table, re.MULTILINE)
        for name in re.findall(r"`(--[\w-]+)`", row)
    }
    assert listed == real


@pytest.mark.parametrize("command", ["reshard", "merge", "append"])
def test_the_options_of_copies_are_those_of_the_command(command: str) -> None:
    from typer.main import get_command

    from shardwriter.cli import app

    params = get_command(app).commands[command].params  # type: ignore[attr-defined]
    real = {opt for p in params for opt in p.opts if opt.startswith("--")} - {"--help", "--verbose"}
    row = "reshard" if command == "merge" else command  # which has the same
    (cells,) = re.findall(rf"^\| `{row} .*? \| .*? \| (.*?) \|$", README, re.MULTILINE)
    listed = set(re.findall(r"`(--[\w-]+)`", cells.replace("`-j`", "`--workers`")))
    assert listed == real


def test_the_readme_speaks_of_every_format() -> None:
    from shardwriter.sources.find import FORMATS

    for name in FORMATS:
        assert f"`{name}`" in README
