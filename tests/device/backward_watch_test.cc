// The streams on which the end of a backward runs (autograd/hooks.h): after all gradients,
// and before what the caller of backward() does next.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "pipewright/autograd/hooks.h"
#include "tests/device/device.h"

namespace pipewright {
namespace {

// Adds up gradients when a backward ends.
class Sums final : public autograd::BackwardWatch {
 public:
  Sums(at::Tensor first, at::Tensor second)
      : first_(std::move(first)), second_(std::move(second)) {}

  static void on_gradient_of(const at::Tensor& tensor, const std::shared_ptr<Sums>& self) {
    tensor.register_hook([self](const at::Tensor&) { self->watch(self); });
  }
  at::Tensor sum;

 private:
  void backward_begins() override {}
  bool is_complete() override { return false; }
  void backward_ends() override {
    const c10::NoGradGuard no_grad;
    sum = first_.grad() + second_.grad();
  }

  const at::Tensor first_, second_;
};

// Layers on a stream each, and a caller on a third one. The watch begins in one of the layers, on
// whose stream it ends.
TEST(BackwardWatch, EndsAfterGradientsOfAllStreams) {
  const at::TensorOptions on_device(testdevice::device(0));
  for (uint64_t seed = 0; seed < 20; ++seed) {
    testdevice::seed(seed);
    const c10::Stream caller = testdevice::new_stream(0);
    const c10::StreamGuard on_caller(caller);
    const at::Tensor first = at::full({8}, 2.0, on_device).requires_grad_();
    const at::Tensor second = at::full({8}, 3.0, on_device).requires_grad_();
    const auto sums = std::make_shared<Sums>(first, second);
    const c10::Stream one = testdevice::new_stream(0), other = testdevice::new_stream(0);
    testdevice::order(caller, one);
    testdevice::order(caller, other);
    at::Tensor x, y;
    {
      const c10::StreamGuard guard(one);
      x = first * 5;
      Sums::on_gradient_of(x, sums);
    }
    {
      const c10::StreamGuard guard(other);
      y = second * 7;
    }
    testdevice::order(one, caller);
    testdevice::order(other, caller);
    (x + y).sum().backward();
    const at::Tensor copied = sums->sum * 1;
    EXPECT_TRUE(at::equal(copied.cpu(), at::full({8}, 12.0))) << "seed " << seed;
    testdevice::drain();
    EXPECT_TRUE(testdevice::races().empty()) << testdevice::races().front();
  }
}

}  // namespace
}  // namespace pipewright
