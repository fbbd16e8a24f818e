"""The network that ``train_demo.py`` trains, and what makes it learn."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Network(nn.Sequential):
    """Four convolutions and a mean over the picture: 62,000 weights."""

    def __init__(self) -> None:
        layers: list[nn.Module] = []
        for width_in, width_out, stride in [(3, 16, 2), (16, 32, 1), (32, 64, 1), (64, 64, 1)]:
            layers += [
                nn.Conv2d(width_in, width_out, 3, stride, padding=1, bias=False),
                nn.BatchNorm2d(width_out),
                nn.ReLU(),
            ]
            if stride == 1:
                layers.append(nn.MaxPool2d(2))
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class Training:
    """A network on its device, with what makes it learn.

    Args:
        seed: Of the first weights.
        num_steps: Of all epochs together, for the learning rate's course.
    """

    def __init__(self, seed: int, num_steps: int) -> None:
        torch.manual_seed(seed)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.network = Network().to(self.device)
        self.optimizer = torch.optim.AdamW(self.network.parameters(), weight_decay=0.01)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, max_lr=0.01, total_steps=num_steps, pct_start=0.2
        )

    def parts(self) -> dict[str, Any]:
        """Give what a checkpoint has to hold of it."""
        return {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
        }

    def load(self, parts: dict[str, Any]) -> None:
        """Take over what a checkpoint holds."""
        self.network.load_state_dict(parts["network"])
        self.optimizer.load_state_dict(parts["optimizer"])
        self.schedule.load_state_dict(parts["schedule"])

    def pictures(self, batch: dict[str, Any]) -> torch.Tensor:
        """Bring a batch's pictures to the device; float32[n, 3, side, side], from -1 to 1."""
        return batch["image"].to(self.device, non_blocking=True).float() / 127.5 - 1

    def step(self, batch: dict[str, Any]) -> torch.Tensor:
        """Learn from a batch; give the mean loss, on the device."""
        labels = batch["label"].to(self.device, non_blocking=True)
        loss = nn.functional.cross_entropy(self.network(self.pictures(batch)), labels)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return loss.detach()
