"""What train_gpt saves, in PyTorch, and what PyTorch saves, in train_gpt: weights and Adam's state bit for bit, and the
loss of the same model written in PyTorch. And all that a new user would do, up to loading the model in Python.

Run by Bazel with tag `peer`: train_gpt_peer.py PIPEWRIGHT TRAIN_GPT
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest

import torch
import torch.distributed.checkpoint as dcp
from ranks import run_on_ranks
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

PIPEWRIGHT, TRAIN_GPT = sys.argv[1:3]

# train_gpt's default, which never changes. Adam's first step goes by the sign of each gradient, so where one is nearly zero
# rounding decides: a text in which that happens moves the next loss by more than 1e-5.
TEXT = "/usr/share/common-licenses/GPL-3"

LAYERS, DIM, CONTEXT, HEAD_DIM, BATCH = 3, 32, 32, 16, 16
FLAGS = ["--data", TEXT, "--layers", str(LAYERS), "--dim", str(DIM), "--context", str(CONTEXT),
         "--norm", "rms", "--rope", "--tie", "--json"]
OPTIMIZER = "optim.state."


def run(*words):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300)
    if done.returncode != 0:
        raise AssertionError(f"{words}: exit {done.returncode}\n{done.stderr.decode()}")
    return done.stdout.decode()


def figures(output):
    """The losses by step, and the held-back loss, of what train_gpt prints; None if it was stopped."""
    lines = [json.loads(line) for line in output.splitlines()]
    return {line["step"]: line["loss"] for line in lines if "step" in line}, lines[-1].get("held_back_loss")


def train(*flags):
    """The held-back loss."""
    return figures(run(TRAIN_GPT, *FLAGS, *flags))[1]


def exported(folder, path):
    run(PIPEWRIGHT, "checkpoint", "export", path, "-o", os.path.join(folder, "all.safetensors"), "--all")
    return load_file(os.path.join(folder, "all.safetensors"))


def rotated(x):
    angles = torch.outer(torch.arange(x.size(-2)), 10000.0**(-torch.arange(HEAD_DIM // 2) / (HEAD_DIM // 2)))
    pairs = torch.complex(*x.chunk(2, -1)) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([pairs.real, pairs.imag], -1)


class Block(nn.Module):

    def __init__(self):
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(DIM, eps=1e-5), nn.RMSNorm(DIM, eps=1e-5)
        self.qkv, self.mix = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        q, k, v = self.qkv(self.attention_norm(x)).unflatten(-1, (-1, 3, HEAD_DIM)).permute(3, 0, 2, 1, 4)
        mixed = F.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
        x = x + self.mix(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x))))


class Gpt(nn.Module):
    """With the names that a Hugging Face model would have: the tied output layer has none."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(256, DIM)
        for layer in range(LAYERS):
            self.add_module(f"block{layer}", Block())
        self.norm = nn.RMSNorm(DIM, eps=1e-5)

    def forward(self, tokens):
        x = self.tokens(tokens)
        for layer in range(LAYERS):
            x = getattr(self, f"block{layer}")(x)
        return F.linear(self.norm(x), self.tokens.weight)


def held_back_loss(model):
    """As train_gpt's: over 64 windows, evenly spread over the last tenth of the text."""
    with open(TEXT, "rb") as file:
        text = torch.tensor(list(file.read()))
    training = len(text) - len(text) // 10
    room, windows = len(text) - training - CONTEXT - 1, 4 * BATCH
    starts = [training + room * i // (windows - 1) for i in range(windows)]
    tokens = torch.stack([text[start:start + CONTEXT + 1] for start in starts])
    with torch.no_grad():
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).item()


def sharded_state(names):
    """A model under fully_shard over two ranks, and tensors like its parameters for Adam's state, by name."""
    model = Gpt()
    mesh = init_device_mesh("cpu", (2,))
    for layer in range(LAYERS):
        fully_shard(getattr(model, f"block{layer}"), mesh=mesh)
    fully_shard(model, mesh=mesh)
    parameters = dict(model.named_parameters())
    state = {}
    for name in names:
        if not name.startswith(OPTIMIZER):
            state[name] = parameters[name].detach()
        elif name.endswith(".step"):
            state[name] = torch.zeros(())
        else:
            state[name] = torch.zeros_like(parameters[name[len(OPTIMIZER):].rpartition(".")[0]].detach())
    return state


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def load_and_save_on_rank(_, folder, checkpoint):
    """Loads train_gpt's checkpoint into fully_shard, compares it with its export, and saves it as PyTorch does."""
    expected = load_file(os.path.join(folder, "all.safetensors"))
    state = sharded_state(expected)
    dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(checkpoint))
    for name, value in state.items():
        assert torch.equal(whole(value), expected[name]), name
    writer = dcp.HuggingFaceStorageWriter(os.path.join(folder, "theirs"), save_distributed=True)
    dcp.save(state, storage_writer=writer)


def save_as_hugging_face(weights, folder):
    """Two files and an index, as save_pretrained writes a model that is too large for one."""
    os.mkdir(folder)
    names = sorted(weights)
    files = {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file = f"model-{number:05d}-of-00002.safetensors"
        save_file({name: weights[name] for name in part}, os.path.join(folder, file), metadata={"format": "pt"})
        files |= dict.fromkeys(part, file)
    total = sum(weight.nbytes for weight in weights.values())
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as index:
        json.dump({"metadata": {"total_size": total}, "weight_map": files}, index)


class TrainGptTest(unittest.TestCase):

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = scratch.name
        self.checkpoint = self.path("ours/step-000003")
        self.loss = train("--pp", "2", "--schedule", "ZBV", "--dp-shard", "2", "--steps", "3", "--save",
                          self.path("ours"))
        self.saved = exported(self.folder, self.checkpoint)

    def path(self, name):
        return os.path.join(self.folder, name)

    def assert_same(self, actual, expected):
        self.assertEqual(sorted(actual), sorted(expected))
        for name, value in expected.items():
            self.assertEqual((actual[name].dtype, actual[name].shape), (value.dtype, value.shape), name)
            self.assertTrue(torch.equal(actual[name], value), name)

    def weights(self):
        return {name: value for name, value in self.saved.items() if not name.startswith(OPTIMIZER)}

    def test_the_same_model_in_pytorch_has_the_same_loss(self):
        model = Gpt()
        model.load_state_dict(self.weights(), strict=True)
        self.assertAlmostEqual(held_back_loss(model), self.loss, delta=1e-5)

    def test_both_read_what_the_other_writes(self):
        for moment in ("exp_avg", "exp_avg_sq"):
            self.assertGreater(self.saved[f"{OPTIMIZER}tokens.weight.{moment}"].abs().sum().item(), 0)
        self.assertEqual(self.saved[f"{OPTIMIZER}norm.weight.step"].item(), 3)
        run_on_ranks(load_and_save_on_rank, 2, self.folder, self.checkpoint)
        # All of PyTorch's files, Adam's state too, as they were.
        self.assert_same(exported(self.folder, self.path("theirs")), self.saved)
        # From PyTorch's shards, from our export, and from its weights alone, in one file and in a folder of Hugging
        # Face's, into other ranks. A step with a learning rate that changes nothing.
        save_as_hugging_face(self.weights(), self.path("hugging_face"))
        save_file(self.weights(), self.path("weights.safetensors"), metadata={"format": "pt"})
        exported(self.folder, self.checkpoint)
        os.rename(self.path("all.safetensors"), self.path("ours.safetensors"))
        states = {}
        for source in ("theirs", "ours.safetensors", "weights.safetensors", "hugging_face"):
            loss = train("--pp", "1", "--schedule", "GPipe", "--tp", "2", "--steps", "1", "--lr", "1e-300", "--resume",
                         self.path(source), "--save", self.path("again." + source))
            self.assertAlmostEqual(loss, self.loss, delta=1e-5)
            again = exported(self.folder, self.path(f"again.{source}/step-000001"))
            self.assert_same({name: again[name] for name in self.weights()}, self.weights())
            self.assert_adam_went_on(again, has_state=source in ("theirs", "ours.safetensors"))
            states[source] = again
        # Adam's state that PyTorch wrote does to a step, bit for bit, what ours does.
        self.assert_same(states["theirs"], states["ours.safetensors"])

    def assert_adam_went_on(self, after, has_state):
        """The state after one more step is that of Adam's formula, from the saved state or from none."""
        for name in self.weights():
            state = OPTIMIZER + name
            before = {key: self.saved[f"{state}.{key}"] if has_state else torch.zeros(())
                      for key in ("step", "exp_avg", "exp_avg_sq")}
            self.assertEqual(after[state + ".step"].item(), before["step"].item() + 1)
            gradient = (after[state + ".exp_avg"] - 0.9 * before["exp_avg"]) / 0.1
            square = (after[state + ".exp_avg_sq"] - 0.999 * before["exp_avg_sq"]) / 0.001
            self.assertTrue(torch.allclose(gradient**2, square, rtol=1e-3, atol=1e-6), name)


class NewUserTest(unittest.TestCase):

    def test_from_the_first_step_to_python(self):
        """Train, interrupt, resume on another mesh, profile, search, train with the found schedule, export, load."""
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        folder, costs, plan, model = (
            os.path.join(scratch.name, name) for name in ("ckpt", "costs.json", "found.plan", "model.safetensors"))
        losses = {}

        def resumed(*flags):
            """Trains three more steps. Returns the held-back loss."""
            first = len(losses)
            more, held_back = figures(
                run(TRAIN_GPT, *FLAGS, *flags, "--steps", str(first + 3), "--save", folder, "--resume", "latest"))
            self.assertEqual(list(more), [first, first + 1, first + 2])
            losses.update(more)
            return held_back

        # A scheduler interrupts the first run.
        words = [TRAIN_GPT, *FLAGS, "--pp", "2", "--dp-shard", "2", "--steps", "1000000", "--save", folder]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as training:
            first_line = training.stdout.readline()
            training.send_signal(signal.SIGTERM)
            rest, errors = training.communicate(timeout=300)
        self.assertEqual(training.returncode, 4, errors)
        losses.update(figures(first_line + rest)[0])

        resumed("--pp", "4", "--schedule", "1F1B")
        resumed("--pp", "2", "--tp", "2", "--schedule", "ZBV", "--profile", costs)
        run(PIPEWRIGHT, "search", "--ranks", "2", "--microbatches", "4", "--placement", "v", "--costs", costs,
            "-o", plan)
        run(PIPEWRIGHT, "validate", plan)
        held_back = resumed("--pp", "2", "--dp-replicate", "2", "--schedule", plan)

        # As if nothing had happened.
        undisturbed, expected = figures(
            run(TRAIN_GPT, *FLAGS, "--pp", "1", "--schedule", "GPipe", "--steps", str(len(losses))))
        self.assertEqual(list(losses), list(undisturbed))
        for step, loss in undisturbed.items():
            self.assertAlmostEqual(losses[step], loss, delta=1e-5, msg=step)
        self.assertAlmostEqual(held_back, expected, delta=1e-5)

        run(PIPEWRIGHT, "checkpoint", "export", folder, "-o", model)
        loaded = Gpt()
        loaded.load_state_dict(load_file(model), strict=True)
        self.assertAlmostEqual(held_back_loss(loaded), held_back, delta=1e-5)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
