"""Expert records packed beside a model: whole or not at all, of its checkpoint, worth the disk."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache
from tiny_models import make_model

from swiftlm_engine.load.device import Device
from swiftlm_engine.load.weights import load_weights
from swiftlm_engine.streaming import packing
from swiftlm_engine.streaming.pack import INDEX, RECORDS, open_pack
from swiftlm_engine.streaming.report import StreamOptions


@pytest.fixture
def folder(tmp_path):
    return make_model("qwen3_moe", tmp_path, num_experts=6)


def decode(folder, options=None):
    loaded = load_weights(folder, "", Device.CPU, lambda *_: None, options)
    cache = make_prompt_cache(loaded.model)
    steps = [loaded.model(mx.array([[token]]), cache=cache) for token in (5, 17, 99, 300)]
    return mx.concatenate(steps, axis=1), loaded.streaming and loaded.streaming.to_json()


def set_gain(folder, gain):
    index = json.loads((folder / INDEX).read_text())
    (folder / INDEX).write_text(json.dumps(index | {"gain": gain}))


def said(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_pack_is_used_only_when_it_reads_a_tenth_faster_and_gives_the_same_bits(folder, capsys):
    bits, _ = decode(folder)
    assert packing.main([str(folder)]) == 0
    lines = said(capsys)
    assert lines[-1]["stage"] == "done"
    assert lines[-2]["done_bytes"] == lines[-2]["total_bytes"] == (folder / RECORDS).stat().st_size
    calls = {}
    for gain in (1.05, 1.2):
        set_gain(folder, gain)
        got, report = decode(folder, StreamOptions(2))
        assert mx.array_equal(got, bits)
        assert report["packed"] is (gain >= 1.1)
        assert report["problems"] == []
        calls[gain] = report["reads"]
    assert calls[1.2] < calls[1.05]  # one read per expert instead of one per component


def test_removed_pack_leaves_the_model_as_it_was(folder, capsys):
    before = sorted(folder.iterdir())
    packing.main([str(folder)])
    assert packing.main([str(folder), "--remove"]) == 0
    assert sorted(folder.iterdir()) == before
    assert "freed" in said(capsys)[-1]["detail"]


def test_pack_of_another_checkpoint_or_a_cut_one_is_not_used(folder):
    packing.main([str(folder)])
    set_gain(folder, 1.5)
    assert open_pack(folder) is not None
    with (folder / RECORDS).open("ab") as file:
        file.truncate(file.tell() - 1)
    assert open_pack(folder) is None
    packing.main([str(folder)])
    set_gain(folder, 1.5)
    make_model("qwen3_moe", folder, num_experts=6, seed=5)  # the same shapes, other weights
    assert open_pack(folder) is None


def test_records_that_were_written_to_are_not_used(folder):
    packing.main([str(folder)])
    set_gain(folder, 1.5)
    assert open_pack(folder) is not None
    set_gain(folder, None)
    assert open_pack(folder) is None
    set_gain(folder, 1.5)
    with (folder / RECORDS).open("r+b") as file:  # one byte, and not one more
        file.seek(1000)
        flipped = bytes([file.read(1)[0] ^ 1])
        file.seek(1000)
        file.write(flipped)
    assert open_pack(folder) is None


@pytest.mark.parametrize("index", ["", "null", "[]", '"x"', "{}", '{"version": 3, "layers": 7}'])
def test_index_that_cannot_be_read_is_not_used(tmp_path, index):
    (tmp_path / RECORDS).touch()
    (tmp_path / INDEX).write_text(index)
    assert open_pack(tmp_path) is None


@pytest.mark.parametrize("broken", ["hash", "disk"])
def test_pack_that_cannot_be_made_leaves_nothing(broken, folder, monkeypatch, capsys):
    before = sorted(folder.iterdir())
    if broken == "hash":
        monkeypatch.setattr(packing, "_hash", lambda path: "other")
    else:
        usage = packing.shutil.disk_usage(folder)
        full = dataclasses.make_dataclass("Usage", ["free"])(free=usage.free % 100)
        monkeypatch.setattr(packing.shutil, "disk_usage", lambda path: full)
    assert packing.main([str(folder)]) == 1
    assert said(capsys)[-1]["stage"] == "error"
    assert sorted(folder.iterdir()) == before


def test_pack_of_a_daemon_that_was_killed_leaves_nothing(folder, room_path):
    before = sorted(folder.iterdir())
    slow = "import sys; from swiftlm_engine.streaming import packing; from time import sleep; "
    slow += "packing._measure = lambda *_: sleep(60); packing.main(sys.argv[1:])"
    parent = (
        f"import subprocess; subprocess.run([{sys.executable!r}, '-c', {slow!r}, {str(folder)!r}])"
    )
    daemon = subprocess.Popen(
        [sys.executable, "-c", parent], env=os.environ | {"PYTHONPATH": room_path}
    )
    wait_until(lambda: (folder / RECORDS).exists())
    daemon.kill()
    daemon.wait()
    wait_until(lambda: sorted(folder.iterdir()) == before)


def test_finished_pack_is_not_discarded(folder):
    packing.main([str(folder)])
    packing.discard_unfinished(folder)
    assert (folder / RECORDS).exists()


def wait_until(true):
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_model_without_experts_is_not_packed(tmp_path, capsys):
    assert packing.main([str(make_model("llama", tmp_path))]) == 1
    assert "llama" in said(capsys)[-1]["message"]
