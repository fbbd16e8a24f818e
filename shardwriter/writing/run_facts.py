"""What run.json keeps of a run."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any
from uuid import uuid4

from shardwriter.writing.job import Job


def run_facts(job: Job) -> dict[str, Any]:
    """Return what run.json keeps of a job, the facts of this machine included."""
    return {
        "job": job.digest(),
        "options": job.bytes_options(),
        "plan": {
            "label": job.record_encoder().labels.feature,
            "num_items": job.num_items,
            "num_shards": job.num_shards,
            "schema": job.record_encoder().schema.to_json(),
        },
        "source": {**job.source_json(), "fingerprint": job.source.fingerprint()},
        **machine_facts(),
    }


def machine_facts() -> dict[str, Any]:
    """Return what tells one machine, boot and attempt from another."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        boot_id = ""
    return {
        "boot_id": boot_id,
        "host": socket.gethostname(),
        "nonce": uuid4().hex,
        "pid": os.getpid(),
    }
