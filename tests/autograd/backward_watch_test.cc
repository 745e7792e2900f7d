// The end of a backward of which only a backward inside it, within one node, has called watch().
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "pipewright/autograd/checkpoint.h"
#include "pipewright/autograd/hooks.h"

namespace pipewright::autograd {
namespace {

// Counts, and notes what had happened when the backward ended.
class Watch final : public BackwardWatch {
 public:
  explicit Watch(const std::vector<std::string>& seen) : seen_(seen) {}

  int begins = 0;
  std::vector<size_t> ends;  // as many as were seen then

  static void on_gradient(const std::shared_ptr<Watch>& self, const at::Tensor& tensor) {
    tensor.register_hook([self](const at::Tensor&) { self->watch(self); });
  }

 private:
  void backward_begins() override { ++begins; }
  bool is_complete() override { return false; }
  void backward_ends() override { ends.push_back(seen_.size()); }

  const std::vector<std::string>& seen_;
};

using Inner = std::function<at::Tensor(const at::Tensor&)>;

// A function whose backward computes forward again and runs a backward of it, as PyTorch's
// torch.utils.checkpoint with use_reentrant=True does.
struct Reentrant : torch::autograd::Function<Reentrant> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const Inner& inner) {
    context->save_for_backward({x});
    context->saved_data["inner"] = reinterpret_cast<int64_t>(&inner);
    return inner(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto& inner = *reinterpret_cast<const Inner*>(context->saved_data["inner"].toInt());
    const c10::AutoGradMode enabled(true);
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    torch::autograd::backward({inner(x)}, {grads[0]});
    return {x.grad(), {}};
  }
};

class BackwardWatchTest : public testing::Test {
 protected:
  BackwardWatchTest() { Watch::on_gradient(watch_, weight_); }

  at::Tensor leaf(const std::string& name) {
    at::Tensor tensor = at::randn({4}).requires_grad_();
    tensor.register_hook([this, name](const at::Tensor&) { seen_.push_back(name); });
    return tensor;
  }

  std::vector<std::string> seen_;
  const std::shared_ptr<Watch> watch_ = std::make_shared<Watch>(seen_);
  const at::Tensor weight_ = at::randn({4}).requires_grad_();
  const Inner inner_ = [this](const at::Tensor& x) { return x * weight_; };
};

// Each backward, and after everything in it.
TEST_F(BackwardWatchTest, EndsOnceAfterAUsersReentrantNode) {
  const at::Tensor x = leaf("x"), y = leaf("y");
  for (size_t i = 1; i <= 3; ++i) {
    seen_.clear();
    (Reentrant::apply(x * y, inner_) * 2).sum().backward();
    EXPECT_EQ(watch_->begins, i);
    ASSERT_EQ(watch_->ends.size(), i);
    EXPECT_EQ(watch_->ends.back(), 2);
  }
}

// The node is the last one before a leaf.
TEST_F(BackwardWatchTest, EndsOnceBeforeALeaf) {
  const at::Tensor x = leaf("x");
  for (size_t i = 1; i <= 3; ++i) {
    seen_.clear();
    Reentrant::apply(x, inner_).sum().backward();
    EXPECT_EQ(watch_->begins, i);
    ASSERT_EQ(watch_->ends.size(), i);
  }
}

// The engine does not run the next node, of which it takes the gradient.
TEST_F(BackwardWatchTest, EndsOnceWhereGradientsAreTaken) {
  const at::Tensor x = leaf("x"), middle = x * 2;
  torch::autograd::grad({Reentrant::apply(middle, inner_).sum()}, {middle});
  EXPECT_EQ(watch_->begins, 1);
  EXPECT_EQ(watch_->ends.size(), 1);
  torch::autograd::grad({Reentrant::apply(x, inner_).sum()}, {x});
  EXPECT_EQ(watch_->begins, 2);
  EXPECT_EQ(watch_->ends.size(), 2);
}

TEST_F(BackwardWatchTest, EndsOnceWithNodesInNodes) {
  const at::Tensor x = leaf("x"), y = leaf("y");
  const Inner outer = [&](const at::Tensor& in) { return Reentrant::apply(in * y, inner_) * y; };
  Reentrant::apply(x * 2, outer).sum().backward();
  EXPECT_EQ(watch_->begins, 1);
  ASSERT_EQ(watch_->ends.size(), 1);
  EXPECT_EQ(watch_->ends.back(), seen_.size());
}

// A checkpointed part of a first stage has no next node at all.
TEST_F(BackwardWatchTest, EndsOnceAfterAPartWithoutGradientsOfInputs) {
  const at::Tensor y = leaf("y");
  const auto part = checkpoint_function(
      [this](const std::vector<at::Tensor>& in) { return std::vector{in[0] * weight_}; },
      {at::randn({4})});
  (part[0] + y).sum().backward();
  EXPECT_EQ(watch_->begins, 1);
  ASSERT_EQ(watch_->ends.size(), 1);
  EXPECT_EQ(watch_->ends.back(), 1);
}

// A backward that fails inside the node has no end, and the next one is a new backward.
TEST_F(BackwardWatchTest, ABackwardAfterAnErrorIsANewOne) {
  const at::Tensor x = leaf("x");
  bool fails = true;
  const at::Tensor other = at::randn({4}).requires_grad_();
  other.register_hook([&](const at::Tensor&) {
    if (fails) throw std::runtime_error("stopped");
  });
  const Inner inner = [&](const at::Tensor& in) { return in * other * weight_; };
  EXPECT_THROW(Reentrant::apply(x * 2, inner).sum().backward(), std::exception);
  EXPECT_EQ(watch_->begins, 1);
  EXPECT_TRUE(watch_->ends.empty());
  fails = false;
  Reentrant::apply(x * 2, inner).sum().backward();
  EXPECT_EQ(watch_->begins, 2);
  EXPECT_EQ(watch_->ends.size(), 1);
}

}  // namespace
}  // namespace pipewright::autograd
