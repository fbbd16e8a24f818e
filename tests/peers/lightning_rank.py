"""One rank of a training with Lightning: its batches, a line of JSON each.

Arguments: the dataset, the file to write, the number of ranks, the checkpoint to go on from or "-",
the checkpoint to write or "-", and the step behind whose checkpoint the process kills itself.
"""

import json
import os
import signal
import sys
import warnings

import lightning as L
import torch

from shardwriter.reading.torch import ShardLoader

warnings.filterwarnings("ignore")
path, reports, world, resume, keep, kill_step = sys.argv[1:]


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
        self.reports = open(reports, "a")  # noqa: SIM115 - as long as the process

    def report(self, **facts):
        self.reports.write(json.dumps(facts) + "\n")
        self.reports.flush()

    def training_step(self, batch, batch_idx):
        self.report(epoch=self.current_epoch, step=batch_idx, ids=batch["i"].tolist())
        return self.layer(batch["x"]).sum()

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if self.current_epoch == 1 and str(batch_idx) == kill_step:
            self.trainer.save_checkpoint(keep)
        if self.current_epoch == 1 and str(batch_idx - 2) == kill_step:
            os.kill(os.getpid(), signal.SIGKILL)

    def validation_step(self, batch, batch_idx):
        if not self.trainer.sanity_checking:
            self.report(checked=batch["i"].tolist(), pads=batch["is_pad"].tolist())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-6)


options = {"batch_size": 4, "num_workers": 1}
train = ShardLoader(path, shuffle=True, seed=3, uneven="drop", **options)
check = ShardLoader(path, uneven="pad", **options)
trainer = L.Trainer(
    accelerator="cpu",
    devices=int(world),
    strategy="ddp" if int(world) > 1 else "auto",
    max_epochs=2,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    enable_checkpointing=False,
    num_sanity_val_steps=1,
)
model = Model()
trainer.fit(model, train, check, ckpt_path=None if resume == "-" else resume)
model.report(steps=trainer.num_training_batches, end=True)
