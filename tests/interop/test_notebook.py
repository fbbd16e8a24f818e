"""In a real Jupyter kernel: the bar, Ctrl-C in the middle of a write, the cell run again."""

from __future__ import annotations

import json

import pytest
from notebooks import running_kernel

IMPORTS = "import time\nimport shardwriter as sw\n"


@pytest.fixture
def kernel():
    with running_kernel() as kernel:
        yield kernel


def of_kind(found, kind):
    return [content for message, content in found if message == kind]


def test_a_bar_is_updated_in_place_and_ends_full(kernel, tmp_path):
    source = "[{'x': i} for i in range(5000)]"
    found = kernel.run(
        f"{IMPORTS}sw.write({source}, {str(tmp_path / 't@2')!r}, progress=True).num_records"
    )
    shown = of_kind(found, "display_data")
    updates = of_kind(found, "update_display_data")
    assert len(shown) == 1
    assert {u["transient"]["display_id"] for u in updates} == {shown[0]["transient"]["display_id"]}
    last = updates[-1]["data"]
    assert last["text/plain"].startswith("writing 5,000/5,000, ")
    assert '<progress value="5000" max="5000"></progress> 5,000/5,000' in last["text/html"]
    assert [r["data"]["text/plain"] for r in of_kind(found, "execute_result")] == ["5000"]
    assert not of_kind(found, "stream")
    found = kernel.run(f"sw.stats({str(tmp_path / 't')!r}, progress=True).verdict")
    assert "reading " in of_kind(found, "update_display_data")[-1]["data"]["text/plain"]
    found = kernel.run(f"sw.stats({str(tmp_path / 't')!r}).verdict")
    assert [kind for kind, _ in found] == ["execute_result"]


def test_a_cell_that_was_stopped_says_how_to_go_on(kernel, tmp_path):
    out = str(tmp_path / "t@2")
    gate = tmp_path / "gate"
    kernel.run(
        f"{IMPORTS}"
        "def rows():\n"
        "    for i in range(1000):\n"
        "        if i == 900:\n"
        f"            while not __import__('os').path.exists({str(gate)!r}):\n"
        "                print('half ' + 'way')\n"
        "                time.sleep(0.1)\n"
        "        yield {'x': i}\n"
    )
    write = f"sw.write(rows, {out!r}, run=sw.RunOptions(mark_s=0)"
    cell = kernel.start(f"{write})")
    kernel.wait_for_output("half way")
    kernel.interrupt()
    error = of_kind(kernel.finish(cell), "error")[0]
    assert error["ename"] == "KeyboardInterrupt"
    text = "\n".join(error["traceback"])
    assert "the unfinished run is in" in text
    assert "resume=True continues it" in text
    gate.touch()
    again = of_kind(kernel.run(f"{write})"), "error")[0]
    assert again["ename"] == "OutputExists"
    assert "resume=True" in again["evalue"]
    assert "--" not in again["evalue"]
    found = kernel.run(f"{write}, resume=True).num_records")
    assert of_kind(found, "execute_result")[0]["data"]["text/plain"] == "1000"
    manifest = json.loads((tmp_path / "t.manifest.json").read_bytes())
    assert manifest["num_items"] == 1000
