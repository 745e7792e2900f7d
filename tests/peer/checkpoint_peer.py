"""Checkpoints between pipewright and PyTorch: each reads what the other writes, bit for bit.

Run by Bazel with tag `peer`: checkpoint_peer.py PIPEWRIGHT CHECKPOINT
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
import zlib

import torch
import torch.distributed.checkpoint as dcp
from ranks import run_on_ranks
from safetensors.torch import load_file, save_file  # from torch.lock; a LIBTORCH_SITE must have it too
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

PIPEWRIGHT, CHECKPOINT = sys.argv[1], sys.argv[2]

# The values of tests/cli/ckpt, saved by two ranks with rows 0-1 and 2-3.
EXPECTED = {
    "layers.0.wq.weight": torch.arange(16, dtype=torch.float32).reshape(4, 4),
    "norm.weight": torch.arange(3, 7, dtype=torch.float32),
    "optim.state.layers.0.wq.weight.exp_avg": torch.arange(16, 32, dtype=torch.float32).reshape(4, 4),
}


def pipewright(*words):
    done = subprocess.run([PIPEWRIGHT, "checkpoint", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode != 0:
        raise AssertionError(f"pipewright checkpoint {words}: exit {done.returncode}\n{done.stderr.decode()}")
    return done.stdout.decode()


def bits(tensor):
    return tensor.contiguous().view(torch.uint8).tolist() if tensor.dim() else [tensor.item()]


def load_on_rank(_):
    """Loads rows or columns of the whole tensors, which other ranks saved otherwise."""
    mesh = init_device_mesh("cpu", (2,))
    for placement in (Shard(0), Replicate()) + ((Shard(1),)):
        state = {
            name: distribute_tensor(torch.full_like(value, -1), mesh,
                                    [placement if value.dim() == 2 else Replicate()])
            for name, value in EXPECTED.items()
        }
        dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(CHECKPOINT))
        for name, value in state.items():
            assert torch.equal(value.full_tensor(), EXPECTED[name]), (placement, name)


def written_tensors():
    generator = torch.Generator().manual_seed(1)
    return {
        "rows": torch.randn(5, 3, generator=generator),
        "columns": torch.randn(4, 7, generator=generator).to(torch.bfloat16),
        "optim.state.rows.exp_avg": torch.randn(5, 3, generator=generator),
    }


def save_on_rank(_, folder):
    mesh = init_device_mesh("cpu", (2,))
    state = {
        name: distribute_tensor(value, mesh, [Shard(1 if name == "columns" else 0)])
        for name, value in written_tensors().items()
    }
    writer = dcp.HuggingFaceStorageWriter(os.path.join(folder, "ckpt"), save_distributed=True)
    dcp.save(state, storage_writer=writer)


class CheckpointTest(unittest.TestCase):

    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.folder = self.scratch.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def assert_same(self, actual, expected):
        self.assertEqual(sorted(actual), sorted(expected))
        for name, value in expected.items():
            self.assertEqual((actual[name].dtype, actual[name].shape), (value.dtype, value.shape), name)
            self.assertEqual(bits(actual[name]), bits(value), name)

    def test_dcp_loads_our_checkpoint_into_other_shards(self):
        run_on_ranks(load_on_rank, 2)

    def test_python_loads_our_export(self):
        pipewright("export", CHECKPOINT, "-o", self.path("all.safetensors"), "--all")
        self.assert_same(load_file(self.path("all.safetensors")), EXPECTED)
        pipewright("export", CHECKPOINT, "-o", self.path("hf"), "--max-file-size", "20")
        with open(self.path("hf/model.safetensors.index.json")) as file:
            weight_map = json.load(file)["weight_map"]
        loaded = {name: load_file(self.path("hf/" + file))[name] for name, file in weight_map.items()}
        self.assert_same(loaded, {name: value for name, value in EXPECTED.items() if not name.startswith("optim.")})

    def test_checksums_are_zlibs(self):
        with open(os.path.join(CHECKPOINT, "pipewright.json")) as file:
            text = file.read()
        manifest = json.loads(text)
        self.assertEqual(manifest["checksum"],
                         f"{zlib.crc32(text.replace(manifest['checksum'], '00000000', 1).encode()):08x}")
        for entry in manifest["files"]:
            with open(os.path.join(CHECKPOINT, entry["name"]), "rb") as file:
                data = file.read()
            self.assertEqual((entry["size"], entry["crc32"]), (len(data), f"{zlib.crc32(data):08x}"))

    def test_we_read_what_dcp_writes(self):
        run_on_ranks(save_on_rank, 2, self.folder)
        listed = json.loads(pipewright("ls", self.path("ckpt"), "--json"))["checkpoints"][0]
        self.assertEqual(len(listed["files"]), 2)
        self.assertEqual([len(tensor["parts"]) for tensor in listed["tensors"]], [2, 2, 2])
        pipewright("verify", self.path("ckpt"))
        pipewright("export", self.path("ckpt"), "-o", self.path("whole.safetensors"), "--all")
        self.assert_same(load_file(self.path("whole.safetensors")), written_tensors())

    def test_we_read_what_save_file_writes(self):
        types = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
                 torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2,
                 torch.uint16, torch.uint32, torch.uint64, torch.complex64]
        tensors = {str(dtype): torch.arange(12).reshape(3, 4).to(torch.float32).to(dtype) for dtype in types}
        tensors["scalar"] = torch.tensor(2.5)
        tensors["empty"] = torch.zeros(0, 3)
        save_file(tensors, self.path("theirs.safetensors"), metadata={"format": "pt"})
        pipewright("verify", self.path("theirs.safetensors"))
        pipewright("export", self.path("theirs.safetensors"), "-o", self.path("ours.safetensors"))
        self.assert_same(load_file(self.path("ours.safetensors")), tensors)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
