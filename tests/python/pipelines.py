"""Pipelines of small modules, and the same model without a pipeline as the judge."""

import pipewright_torch as pw
import torch
import torch.distributed as dist

DTYPE = torch.float64


class Mlp(torch.nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.first, self.second = torch.nn.Linear(width, width), torch.nn.Linear(width, width)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def build(make, index):
    torch.manual_seed(100 + index)
    return make(index).to(DTYPE)


def mse(output, target):
    return torch.nn.functional.mse_loss(output, target)


def plain(make, num_stages, loss_fn, microbatches, scale=True):
    """Runs the model without a pipeline. `microbatches`: (args, kwargs, target) each. Returns modules, losses and outputs."""
    modules = [build(make, index) for index in range(num_stages)]
    losses, outputs = [], []
    for args, kwargs, target in microbatches:
        for module in modules:
            value = module(*args, **kwargs)
            args = tuple(value) if isinstance(value, (tuple, list)) else (value,)
        outputs.append(value)
        loss = loss_fn(value, target)
        (loss / len(microbatches) if scale else loss).backward()
        losses.append(loss.detach())
    return modules, losses, outputs


def gradients_of(modules):
    return {(index, name): parameter.grad for index, module in modules.items() for name, parameter in module.named_parameters()}


def assert_gradients(found, expected, exact=False):
    """Both: modules by index. Compares those of `found`."""
    gradients = gradients_of(expected)
    assert found
    for place, gradient in gradients_of(found).items():
        if gradients[place] is None:
            assert gradient is None, place
        elif exact:
            assert torch.equal(gradient, gradients[place]), (place, (gradient - gradients[place]).abs().max())
        else:
            torch.testing.assert_close(gradient, gradients[place], rtol=1e-10, atol=1e-12, msg=lambda text: f"{place}: {text}")


def make_schedule(name, make, num_stages, microbatches, loss_fn=mse, **options):
    """Returns this rank's modules by index, and a Schedule of them."""
    ranks = dist.get_world_size()
    placed = placement(name, ranks, num_stages)
    modules = {index: build(make, index) for index in range(num_stages) if placed[index] == dist.get_rank()}
    return modules, pw.Schedule(name, modules, microbatches, loss_fn, **options)


def placement(name, ranks, num_stages):
    in_v = name in ("ZBV", "ZBVZeroBubble", "DualPipeV", "V-Half", "V-Min", "V-Adaptive", "1F1B-V")
    return [stage if stage < ranks else 2 * ranks - 1 - stage for stage in range(num_stages)] if in_v else \
        [stage % ranks for stage in range(num_stages)]
