#include "tests/device/collectives.h"

#include <ATen/ATen.h>

#include <stdexcept>

namespace pipewright::testdevice {

using c10d::ReduceOp;

namespace {

at::Tensor reduced(std::map<int, Part>& parts, size_t i, ReduceOp::RedOpType op) {
  at::Tensor result;
  for (auto& [rank, part] : parts) {
    const at::Tensor& input = part.inputs[i];
    if (!result.defined())
      result = input.clone();
    else if (op == ReduceOp::SUM || op == ReduceOp::AVG)
      result.add_(input);
    else if (op == ReduceOp::PRODUCT)
      result.mul_(input);
    else
      result = op == ReduceOp::MIN ? at::minimum(result, input) : at::maximum(result, input);
  }
  return op == ReduceOp::AVG ? result.div_(static_cast<int64_t>(parts.size())) : result;
}

// Piece `number` of a flat tensor that has one piece of `size` elements per rank.
at::Tensor piece(const at::Tensor& whole, int number, int64_t size) {
  return whole.view(-1).narrow(0, number * size, size);
}

}  // namespace

Body transfer(int from, int to) {
  return [=](std::map<int, Part>& parts) {
    for (size_t i = 0; i < parts[from].inputs.size(); ++i)
      parts[to].outputs[i].copy_(parts[from].inputs[i]);
  };
}

Body all_gather() {
  return [](std::map<int, Part>& parts) {
    for (auto& [rank, mine] : parts) {
      for (auto& [other, theirs] : parts) {
        for (size_t i = 0; i < theirs.inputs.size(); ++i) {
          const at::Tensor input = theirs.inputs[i].view(-1);
          piece(mine.outputs[i], other, input.numel()).copy_(input);
        }
      }
    }
  };
}

Body reduce_scatter(ReduceOp::RedOpType op) {
  return [op](std::map<int, Part>& parts) {
    for (size_t i = 0; i < parts.begin()->second.inputs.size(); ++i) {
      const at::Tensor total = reduced(parts, i, op);
      for (auto& [rank, part] : parts) {
        const at::Tensor output = part.outputs[i].view(-1);
        output.copy_(piece(total, rank, output.numel()));
      }
    }
  };
}

Body all_reduce(ReduceOp::RedOpType op) {
  return [op](std::map<int, Part>& parts) {
    for (size_t i = 0; i < parts.begin()->second.inputs.size(); ++i) {
      const at::Tensor total = reduced(parts, i, op);
      for (auto& [rank, part] : parts) part.outputs[i].copy_(total);
    }
  };
}

Body broadcast(int root) {
  return [root](std::map<int, Part>& parts) {
    for (auto& [rank, part] : parts) {
      for (size_t i = 0; rank != root && i < part.outputs.size(); ++i)
        part.outputs[i].copy_(parts[root].inputs[i]);
    }
  };
}

std::string name_of(ReduceOp::RedOpType op) {
  switch (op) {
    case ReduceOp::SUM:
      return "SUM";
    case ReduceOp::AVG:
      return "AVG";
    case ReduceOp::PRODUCT:
      return "PRODUCT";
    case ReduceOp::MIN:
      return "MIN";
    case ReduceOp::MAX:
      return "MAX";
    case ReduceOp::BAND:
    case ReduceOp::BOR:
    case ReduceOp::BXOR:
    case ReduceOp::PREMUL_SUM:
    case ReduceOp::UNUSED:
      break;
  }
  throw std::invalid_argument("test device: expected SUM, AVG, PRODUCT, MIN or MAX");
}

}  // namespace pipewright::testdevice
