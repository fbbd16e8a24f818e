"""Two ranks that train under Lightning, are killed and resume; and other features of Lightning."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch_sets import N, write

from shardwriter.dataset.permutation import Permutation
from shardwriter.reading.torch import ShardLoader

L = pytest.importorskip("lightning", reason="Lightning is not installed")
SCRIPT = Path(__file__).parent / "lightning_rank.py"
BATCH = 4
ORDER = Permutation(N, 3, 1)(range(N)).tolist()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("torch"))


def started(folder, path, name, world, resume="-", keep="-", kill_step=-1):
    """Start the ranks of a training: processes, and their report files."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes, reports = [], []
    for rank in range(world):
        environment = {
            **os.environ,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "LOCAL_RANK": str(rank),
            "NODE_RANK": "0",
            "OMP_NUM_THREADS": "1",
        }
        reports.append(folder / f"{name}{rank}.jsonl")
        command = [sys.executable, SCRIPT, path, reports[-1], world, resume, keep, kill_step]
        processes.append(
            subprocess.Popen(
                list(map(str, command)), env=environment, stderr=subprocess.PIPE, text=True
            )
        )
    return processes, reports


def ended(processes, reports, code=0):
    """Wait for the ranks, and return what they reported."""
    try:
        for process in processes:
            _, problem = process.communicate(timeout=120)
            assert process.returncode == code, problem[-3000:]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in reports]


def trained(lines, epoch):
    return [line["ids"] for line in lines if line.get("epoch") == epoch]


def expected(rank, world, consumed=0):
    """The batches of a rank in epoch 1, from a place in it."""
    steps = (N - consumed) // world
    mine = [ORDER[consumed + t * world + rank] for t in range(steps)]
    return [mine[begin : begin + BATCH] for begin in range(0, steps, BATCH)]


def test_ranks_are_equal_and_go_on_after_a_kill(path, tmp_path):
    keep = tmp_path / "last.ckpt"
    ranks = ended(
        *started(tmp_path, path, "killed", 2, keep=keep, kill_step=4), code=-signal.SIGKILL
    )
    ids = Counter()
    for rank, lines in enumerate(ranks):
        assert len(trained(lines, 0)) == 13
        ids.update(i for batch in trained(lines, 0) for i in batch)
        assert trained(lines, 1) == expected(rank, 2)[:7]  # two behind the checkpoint are lost
    assert len(ids) == sum(ids.values()) == N - 1
    checked = Counter()
    for lines in ranks:
        batches = [line for line in lines if "checked" in line]
        assert len(batches) == 13
        for batch in batches:
            pairs = zip(batch["checked"], batch["pads"], strict=True)
            checked.update(i for i, is_pad in pairs if not is_pad)
    assert checked == Counter(range(N))

    both = started(tmp_path, path, "both", 2, resume=keep)
    alone = started(tmp_path, path, "alone", 1, resume=keep)
    for rank, lines in enumerate(ended(*both)):
        assert trained(lines, 0) == []
        assert trained(lines, 1) == expected(rank, 2)[5:]
        assert [line["step"] for line in lines if "step" in line] == list(range(5, 13))
        assert lines[-1]["steps"] == 13
    (lines,) = ended(*alone)
    assert trained(lines, 1) == expected(0, 1, consumed=5 * BATCH * 2)


class Passive(L.LightningModule):
    """A model that keeps what it is given."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def test_step(self, batch, batch_idx):
        self.seen += batch["i"].tolist()

    def predict_step(self, batch, batch_idx):
        return batch["i"]


@pytest.mark.filterwarnings("ignore")
def test_lightning_tests_and_predicts(path):
    trainer = L.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    model, loader = Passive(), ShardLoader(path, 10, uneven="pad", num_workers=1)
    trainer.test(model, loader, verbose=False)
    assert model.seen == list(range(N))
    predicted = trainer.predict(model, loader)
    assert torch.cat(predicted).tolist() == list(range(N))


class Overfitted(Passive):
    def training_step(self, batch, batch_idx):
        self.seen.append(batch["i"].tolist())

    def configure_optimizers(self):
        return None


@pytest.mark.filterwarnings("ignore")
def test_lightning_overfits_the_first_batches(path):
    model, loader = Overfitted(), ShardLoader(path, 10, shuffle=True)
    trainer = L.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        overfit_batches=2,
        max_epochs=2,
    )
    trainer.fit(model, loader)
    assert model.seen == 2 * [list(range(10)), list(range(10, 20))]
