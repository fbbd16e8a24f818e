"""A Google Cloud Storage on the loopback, for as long as a test needs it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from types import SimpleNamespace
from urllib.parse import parse_qs, urlparse

import pytest
import requests

BUCKET = "bkt"


@contextmanager
def gcs_emulator() -> Iterator[str]:
    """Run an emulator in this process; Beam goes to it, without credentials.

    The emulator ignores preconditions, so they are looked at in front of it: generations of the
    target of an upload, a compose, a rewrite or a delete, and of the source of a rewrite.

    Yields:
        The URL of its bucket, which is empty.
    """
    pytest.importorskip("gcp_storage_emulator", reason="the emulator is not installed")
    from apache_beam.internal.gcp import auth
    from gcp_storage_emulator import server as emulator

    logging.getLogger("gcp_storage_emulator").setLevel(logging.CRITICAL)
    with pytest.MonkeyPatch.context() as patch:
        guard = _Guard()
        for _, handlers in emulator.HANDLERS:
            for method, handler in handlers.items():
                patch.setitem(handlers, method, guard.before(method, handler))
        server = emulator.create_server("localhost", 0, in_memory=True, default_bucket=BUCKET)
        server.start()
        # Set by its thread, which says that it runs when this is there.
        port = server._api._httpd.server_address[1]
        patch.setenv("STORAGE_EMULATOR_HOST", f"http://localhost:{port}")
        # Without this Beam asks the metadata server for credentials, 20 seconds long.
        patch.setattr(auth._Credentials, "_credentials_init", True)
        patch.setattr(auth._Credentials, "_credentials", None)
        try:
            yield f"gs://{BUCKET}"
        finally:
            server.stop()


def empty_bucket() -> None:
    """Forget all objects; every one of them makes the emulator slower."""
    requests.get(f"{os.environ['STORAGE_EMULATOR_HOST']}/wipe?keep-buckets=1", timeout=10)


class _Guard:
    """Answers 412 where a precondition does not hold."""

    def __init__(self):
        self._uploads = {}  # of resumable uploads: what was asked for when they began

    def before(self, method, handler):
        """Return a handler that looks first."""

        def guarded(request, response, storage):
            condition = self._condition(method, request)
            if condition is not None and not _holds(condition, storage):
                response.status = HTTPStatus.PRECONDITION_FAILED
                response.json(_REFUSAL)
                return
            handler(request, response, storage)
            begins = method == "POST" and request.query.get("uploadType") == ["resumable"]
            if begins and response.status == HTTPStatus.OK:
                upload_id = parse_qs(urlparse(response["Location"]).query)["upload_id"][0]
                self._uploads[upload_id] = condition

        return guarded

    def _condition(self, method, request):
        query = {key: values[0] for key, values in request.query.items()}
        if "upload_id" in query:
            is_last = not request.get_header("Content-Range", "").endswith("/*")
            return self._uploads[query["upload_id"]] if is_last else None
        params, name = request.params, query.get("name")
        if "uploadType" in query and name is None:
            name = (request.data.get("meta") or request.data)["name"]
        return SimpleNamespace(
            bucket=params.get("dest_bucket_name") or params.get("bucket_name"),
            name=name or params.get("dest_object_id") or params.get("object_id"),
            generation=query.get("ifGenerationMatch") if method != "GET" else None,
            source=(params.get("bucket_name"), params.get("object_id")),
            source_generation=query.get("ifSourceGenerationMatch"),
        )


def _holds(condition, storage):
    here = _generation(storage, condition.bucket, condition.name)
    if condition.generation not in (None, here):
        return False
    return condition.source_generation in (None, _generation(storage, *condition.source))


def _generation(storage, bucket, name):
    from gcp_storage_emulator.exceptions import NotFound

    try:
        return str(storage.get_file_obj(bucket, name)["generation"])
    except NotFound:
        return "0"


_WHY = "At least one of the pre-conditions you specified did not hold."
_REFUSAL = {
    "error": {
        "code": 412,
        "message": _WHY,
        "errors": [
            {
                "message": _WHY,
                "domain": "global",
                "reason": "conditionNotMet",
                "locationType": "header",
                "location": "If-Match",
            }
        ],
    }
}
