"""torchtitan 0.3.0 trains its debug model on CPU processes in PyTorch's runtime and in ours: the claims of docs/pytorch.md.

    torchtitan_on_cpu.py TEXT...                        all cases, on two ranks each; TEXT is what it trains on
    torchtitan_on_cpu.py rank RUNTIME FILE OPTIONS...   one run under torchrun; writes gradients and losses to FILE.RANK

torchtitan is for GPUs. What it lacks on CPUs is replaced here: the backward of FlexAttention, and questions about the device.
"""

import collections
import json
import os
import runpy
import subprocess
import sys
import tempfile
import types

import torch

SMALL = ["--module", "llama3", "--training.disable_cuda_graphs", "--parallelism.pipeline_parallel_degree", "2", "--training.steps", "2",
         "--training.seq_len", "64", "--training.local_batch_size", "4", "--compile.no-enable", "--debug.seed", "1"]
CHUNKED, WHOLE = ["--config", "llama3_debugmodel"], ["--config", "llama3_debugmodel_ce_loss"]  # its loss
# Runtime, loss, and options of a run whose results are those of another.
CASES = {
    "1F1B": (["--parallelism.pipeline_parallel_schedule", "1F1B"], ("pytorch", CHUNKED), ("pipewright", CHUNKED)),
    "Interleaved1F1B": (["--parallelism.pipeline_parallel_schedule", "Interleaved1F1B"], ("pytorch", CHUNKED), ("pipewright", CHUNKED)),
    "ZBVZeroBubble": (["--parallelism.pipeline_parallel_schedule", "ZBVZeroBubble", "--training.mixed_precision_param", "float32",
                       "activation-checkpoint:none"], ("pytorch", WHOLE), ("pipewright", CHUNKED)),
}


# ---- one rank


def attention(q, k, v, *, score_mod, block_mask, scale, enable_gqa, return_aux, kernel_options):
    from torch.nn.attention.flex_attention import create_mask
    mask = create_mask(block_mask.mask_mod, q.shape[0], 1, q.shape[2], k.shape[2], device="cpu")
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=enable_gqa)
    return out, types.SimpleNamespace(lse=torch.zeros(q.shape[:3]))


def make_schedule(*, parallelism, local_batch_size, stages, loss_fn, **_):
    import pipewright_torch as pw
    return pw.Schedule(parallelism.pipeline_parallel_schedule, stages, loss_fn=lambda *args, **kwargs: loss_fn(*args, **kwargs)[0],
                       n_microbatches=local_batch_size // parallelism.pipeline_parallel_microbatch_size, scale_grads=False)


def run(runtime, path, options):
    torch._utils._get_available_device_type = lambda: "cpu"
    torch.cpu.get_device_name = lambda *_: "CPU"
    torch.cpu.get_device_properties = lambda *_: types.SimpleNamespace(total_memory=1, name="CPU")
    torch.cpu.memory_stats = lambda *_: collections.defaultdict(int)
    for name in ("reset_peak_memory_stats", "empty_cache"):
        setattr(torch.cpu, name, lambda *_: None)
    import torchtitan.distributed.utils as utils
    from torchtitan.distributed import pipeline_parallel
    from torchtitan.models.common.attention import FlexAttention
    FlexAttention._compiled_flex_attn = staticmethod(attention)
    utils.set_pg_timeouts = lambda *_, **__: None
    if runtime == "pipewright":
        pipeline_parallel._build_pipeline_schedule = make_schedule
    clip, steps = utils.clip_grad_norm_, []

    def note(parameters, *args, **kwargs):
        parameters = list(parameters)
        gradients = [None if p.grad is None else p.grad.full_tensor().clone() for p in parameters]
        steps.append((gradients, clip(parameters, *args, **kwargs)))
        torch.save(steps, f"{path}.{os.environ['RANK']}")
        return steps[-1][1]

    utils.clip_grad_norm_ = note
    sys.argv = ["train", *options]
    runpy.run_module("torchtitan.train", run_name="__main__")


# ---- all cases


def prepare(folder, texts):
    """The folders of data and of a tokenizer that the debug model reads."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    assets = f"{folder}/tests/assets"
    os.makedirs(f"{assets}/c4_test")
    os.makedirs(f"{assets}/tokenizer")
    with open(f"{assets}/c4_test/data.json", "w") as file:
        for text in texts:
            with open(text) as source:
                print(json.dumps({"text": source.read()}), file=file)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    ends = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
    tokenizer.train(texts, trainers.BpeTrainer(vocab_size=2000, special_tokens=list(ends.values()), show_progress=False))
    tokenizer.save(f"{assets}/tokenizer/tokenizer.json")
    with open(f"{assets}/tokenizer/tokenizer_config.json", "w") as file:
        json.dump(ends, file)


def results_of(runtime, options, folder):
    """By rank, the gradients and their norm in each step."""
    path = f"{folder}/{runtime}"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", os.path.abspath(__file__), "rank", runtime, path]
    done = subprocess.run(command + options, cwd=folder, capture_output=True, text=True, timeout=600,
                          env=dict(os.environ, OMP_NUM_THREADS="1", HF_DATASETS_OFFLINE="1", WANDB_MODE="disabled"))
    if done.returncode:
        sys.exit(f"{runtime} {options}: {done.stdout[-3000:]}{done.stderr[-3000:]}")
    return [torch.load(f"{path}.{rank}") for rank in range(2)]


def main(texts):
    with tempfile.TemporaryDirectory() as folder:
        prepare(folder, [os.path.abspath(text) for text in texts])
        for name, (options, *runs) in CASES.items():
            expected, found = (results_of(runtime, loss + SMALL + options, folder) for runtime, loss in runs)
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-8)
            print(f"{name}: equal gradients in {len(expected[0])} steps on both ranks", flush=True)
        lost = [i for step in results_of("pytorch", CHUNKED + SMALL + options, folder)[0] for i, gradient in enumerate(step[0]) if gradient is None]
        assert len(lost) == 2, f"expected PyTorch's runtime to lose the last norm's gradient in both steps, got {lost}"
    print("torchtitan: passed")


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        run(sys.argv[2], sys.argv[3], sys.argv[4:])
    else:
        main(sys.argv[1:])
