"""What pipewright_torch does for stages on a GPU, as far as it shows without one.

Run by Bazel with tag `peer`. With a GPU, schedule_test.py and data_parallel_test.py run on it where PIPEWRIGHT_TEST_DEVICE=cuda.
"""

import ctypes
import sys
import unittest

import pipewright_torch as pw
import torch
import torch.distributed as dist
from pipewright_torch import _world
from torch.distributed.pipelining import PipelineStage


def variable(name):
    """As C++ code sees it: os.environ is a copy."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    return getenv(name.encode())


def schedule_of(module):
    return pw.Schedule("1F1B", {0: module}, 1, torch.nn.functional.mse_loss)


class NcclTest(unittest.TestCase):
    def setUp(self):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    def tearDown(self):
        if dist.is_initialized():
            dist.destroy_process_group()
        _world.close()

    def test_its_library_is_loaded_for_a_gpu_only(self):
        schedule_of(torch.nn.Linear(2, 2)).close()
        self.assertFalse("pipewright_torch._nccl" in sys.modules)
        _world.close()
        self.assertIsNone(variable("TORCH_NCCL_ASYNC_ERROR_HANDLING"))
        _world.world(torch.device("cuda:0"))
        self.assertEqual(variable("TORCH_NCCL_ASYNC_ERROR_HANDLING"), b"0")  # as comms::nccl_backends() sets it
        # A world has one device.
        with self.assertRaisesRegex(ValueError, "^stages: expected parameters on cuda:0, the device of this process's groups, got cpu$"):
            schedule_of(torch.nn.Linear(2, 2))

    def test_other_devices_are_refused(self):
        with self.assertRaisesRegex(ValueError, "^device: expected cpu or cuda, got 'tpu'$"):
            pw.register_backend("tpu")

    def test_stages_without_parameters_are_where_their_pipeline_stages_are(self):
        stage = PipelineStage(torch.nn.ReLU(), 0, 1, torch.device("meta"))
        with self.assertRaisesRegex(ValueError, "got meta in stage 0$"):
            pw.Schedule("1F1B", stage, 1, torch.nn.functional.mse_loss)

    def test_without_its_library_the_error_says_so(self):
        sys.modules["pipewright_torch._nccl"] = None  # import fails
        self.addCleanup(sys.modules.pop, "pipewright_torch._nccl")
        had = pw.__dict__.pop("_nccl", None)
        self.addCleanup(lambda: had and setattr(pw, "_nccl", had))
        with self.assertRaisesRegex(RuntimeError, "^stages on a GPU need NCCL, and pipewright_torch was built without it"):
            _world.world(torch.device("cuda:0"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
