"""The demo of training learns, waits little, and loses no record when it is stopped."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from environments import peers_python
from paths import ROOT


def run(*command: str | Path) -> str:
    environment = {
        **os.environ,
        "SHARDWRITER_TRAIN_PYTHON": peers_python(),
        "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_the_demo_goes_on_with_the_same_records(tmp_path: Path) -> None:
    script = ROOT / "scripts" / "train_demo"
    small = ["--epochs", "2", "--images", "500", "--batch-size", "32", "--workers", "1"]
    document = json.loads(run(script, *small, "--work", tmp_path / "work", "--json"))

    assert [epoch["num_samples"] for epoch in document["epochs"]] == [500, 500]
    assert (document["num_val"], document["num_pads"]) == (1003, 1)
    losses = [epoch["loss"] for epoch in document["epochs"]]
    assert losses[1] < losses[0]
    assert all(0 <= epoch["waiting_share"] <= 1 for epoch in document["epochs"])
    stop = document["stop"]
    assert stop["records_before"] == stop["after_steps"] * 32
    assert stop["records_before"] + stop["records_after"] == 500
    assert stop["token"]["consumed"] == stop["records_before"]
    assert (stop["same_records"], stop["repeated"], stop["missing"]) == (True, 0, 0)


def test_the_demo_deletes_no_folder_of_others(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    command = [peers_python(), ROOT / "scripts" / "train_demo.py", "--work", tmp_path]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "not of this demo" in done.stderr
    assert (tmp_path / "mine").read_text() == "mine"


def test_the_benchmark_finds_the_same_samples_with_every_loader() -> None:
    script = ROOT / "scripts" / "bench"
    small = ["--size", "0.03", "--set", "side=32", "--set", "batch_size=8", "--workers", "0"]
    command = [peers_python(), script, "train", *small, "--repeats", "1", "--json"]
    document = json.loads(run(*command))
    assert list(document) == ["train/jpeg", "train/pixels", "train/integers"]
    for case in document.values():
        assert case["count"] == 60
        assert set(case["results"]) == {"shardwriter", "folder", "memory"}
