"""What a loader hands to torch, and what it does not let others set."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final

from torch.utils.data import DataLoader, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from shardwriter.errors import OptionError
from shardwriter.reading.epochs import Progress
from shardwriter.reading.torch.batches import Task, TaskDataset, as_it_is

_OURS: Final = {
    "dataset": "give data=, the first argument",
    "sampler": "it is made of shuffle, seed and uneven",
    "batch_sampler": "it is made of batch_size, shuffle, seed and uneven",
    "collate_fn": "collate= is called with the list of a batch's samples",
    "timeout": "start_timeout_s= and item_timeout_s= are told apart",
    "in_order": "batches come in order, so that a state says which have come",
}


class BatchNumbers(DistributedSampler[Task]):
    """The tasks of the iteration that began last.

    It is a ``DistributedSampler`` so that trainers which put one into a loader leave this one
    alone, and tell it the epoch.

    Args:
        progress: Of the loader.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __iter__(self) -> Iterator[Task]:
        run = self._progress.run
        assert run is not None
        return ((run.plan, batch_index) for batch_index in range(run.plan.num_batches))

    def __len__(self) -> int:
        run = self._progress.run
        return 0 if run is None else run.plan.num_batches

    def set_epoch(self, epoch: int) -> None:
        """Tell the loader, as `ShardLoader.set_epoch` does."""
        self._progress.set_epoch(epoch)


def torch_options(options: Mapping[str, Any], own: Iterable[str] = ()) -> dict[str, Any]:
    """Return the options that are handed to torch.

    Those that a loader has set itself are left out where it is made again of its attributes.

    Args:
        options: What the loader was given beside its own.
        own: The loader's own: a name that is neither may be meant as one of them.

    Raises:
        OptionError: There is no such option, or it is not the caller's to give.
    """
    known = inspect.signature(DataLoader.__init__).parameters
    kept = {}
    for name, value in options.items():
        if name not in known:
            near = get_close_matches(name, [*own, *(known.keys() - _OURS.keys())], 1)
            hint = f"did you mean {near[0]}=?" if near else "see help(ShardLoader)"
            raise OptionError(f"ShardLoader has no option {name!r}", hint=hint)
        if name not in _OURS:
            kept[name] = value
        elif not (value is known[name].default or value is as_it_is or isinstance(value, _MADE)):
            raise OptionError(f"{name} is not the caller's to give", hint=_OURS[name])
    return kept


_MADE: Final = (TaskDataset, BatchNumbers, SequentialSampler)
