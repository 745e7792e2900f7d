// Rows of PyTorch's suites in which tensor parallelism meets fully_shard, replicate and activation
// checkpointing: a plain copy of the model, averaged by hand over the data-parallel ranks, is the
// judge of losses, gradients and parameters in every iteration.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "pipewright/autograd/checkpoint.h"
#include "pipewright/comms/mesh.h"
#include "pipewright/comms/recording_backend.h"
#include "pipewright/ddp/replicate.h"
#include "pipewright/fsdp/fully_shard.h"
#include "pipewright/modules/forward.h"
#include "pipewright/tp/parallelize.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"
#include "tests/support/training/parity.h"

namespace pipewright::tp {
namespace {

using comms::Mesh;
using comms::MeshDim;
using tests::ModulePtr;
using tests::on_ranks;
using tests::Rank;

// PyTorch's MLPStack: three MLPs with hidden sizes of 3, 4 and 3 times `dim`.
class MlpStack : public tests::TestModule {
 public:
  MlpStack(int64_t dim, bool checkpointed) : checkpointed_(checkpointed) {
    for (const int64_t multiplier : {3, 4, 3}) {
      const std::string name = std::to_string(mlps_.size());
      mlps_.push_back(register_module(
          name, tests::make_mlp(dim, multiplier, 42 + static_cast<uint64_t>(mlps_.size()))));
    }
  }
  at::Tensor forward(const at::Tensor& input) override {
    at::Tensor x = input;
    for (const ModulePtr& mlp : mlps_) {
      const auto function = [mlp](const std::vector<at::Tensor>& in) {
        return std::vector{modules::forward(mlp, in[0])};
      };
      x = checkpointed_ ? autograd::checkpoint(function, {x})[0] : function({x})[0];
    }
    return x;
  }
  std::vector<std::shared_ptr<torch::nn::Module>> parts() override {
    return {mlps_.begin(), mlps_.end()};
  }

 private:
  const bool checkpointed_;
  std::vector<ModulePtr> mlps_;
};

const Plan kPlan = {{"*.in_proj", colwise_parallel()}, {"*.out_proj", rowwise_parallel()}};

// What a rank has of a parameter: its part by the layout, and then its shard of dimension 0 along
// mesh dimension `shard`; an empty name shards nothing.
at::Tensor part_of(const at::Tensor& whole, const comms::Layout& layout, int rank,
                   const std::string& shard) {
  at::Tensor part = whole;
  for (const comms::Box& box : layout.boxes(rank)) {
    for (int64_t d = 0; d < whole.dim(); ++d)
      part = part.narrow(d, box.begin[static_cast<size_t>(d)], box.sizes[static_cast<size_t>(d)]);
  }
  if (layout.boxes(rank).empty()) part = at::empty(layout.local_shape(rank), whole.options());
  if (shard.empty()) return part;
  const int size = layout.mesh().size(shard), mine = layout.mesh().coordinate(rank, shard);
  const auto chunks = part.chunk(size, 0);
  return mine < static_cast<int>(chunks.size()) ? chunks[static_cast<size_t>(mine)]
                                                : part.narrow(0, 0, 0);
}

struct Setup {
  std::vector<MeshDim> mesh;
  std::vector<std::string> data_parallel;  // the mesh dimensions over which gradients are averaged
  std::string shard;                       // the one that shards; empty if none
  int64_t dim;
  bool checkpointed = false;
};
using Wrap = std::function<std::vector<std::shared_ptr<void>>(MlpStack&, Mesh&)>;

// Ten iterations of Adam. Data differs between data-parallel ranks only.
void expect_parity(const Setup& setup, const Wrap& wrap) {
  int ranks = 1;
  for (const MeshDim& dim : setup.mesh) ranks *= dim.size;
  on_ranks(ranks, [&](Rank& self) {
    Mesh mesh(*self.world, setup.mesh);
    const auto plain = std::make_shared<MlpStack>(setup.dim, false);
    const auto module = std::make_shared<MlpStack>(setup.dim, setup.checkpointed);
    const auto data_parallel = mesh.group(setup.data_parallel);
    const auto tp = parallelize(*module, kPlan, mesh, "tp");
    for (const auto& named : plain->named_parameters()) {
      EXPECT_TRUE(at::equal(tp->full_tensor(named.key()), named.value())) << named.key();
      EXPECT_EQ(tp->layouts().at(named.key()).placements().size(), setup.mesh.size());
    }
    const auto units = wrap(*module, mesh);
    const auto expect_equal = [&](const std::string& when) {
      const auto got = module->named_parameters();
      for (const auto& named : plain->named_parameters()) {
        const auto part = [&](const at::Tensor& whole) {
          return part_of(whole, tp->layouts().at(named.key()), self.rank, setup.shard);
        };
        const at::Tensor &one = named.value(), &other = got[named.key()];
        ASSERT_EQ(part(one).sizes(), other.sizes()) << named.key();
        EXPECT_TRUE(at::allclose(part(one), other, 1e-9, 1e-11)) << named.key() << when;
        ASSERT_EQ(one.grad().defined(), other.grad().defined()) << named.key() << when;
        if (one.grad().defined()) {
          EXPECT_TRUE(at::allclose(part(one.grad()), other.grad(), 1e-9, 1e-11))
              << "the gradient of " << named.key() << when;
        }
      }
    };
    expect_equal(" at first");
    const auto plain_optimizer = tests::adam(*plain), optimizer = tests::adam(*module);
    for (int iteration = 0; iteration < 10; ++iteration) {
      plain_optimizer->zero_grad(iteration % 2 == 0);
      optimizer->zero_grad(iteration % 2 == 0);
      const at::Tensor input = tests::random_input(
          {8, setup.dim}, tests::data_seed(iteration, data_parallel->getRank()));
      const at::Tensor expected = modules::forward(plain, input).sum();
      const at::Tensor got = modules::forward(module, input).sum();
      EXPECT_TRUE(at::allclose(expected, got, 1e-9, 1e-11)) << iteration;
      expected.backward();
      got.backward();
      tests::average_grads(*plain, *data_parallel);
      expect_equal(" after backward " + std::to_string(iteration));
      plain_optimizer->step();
      optimizer->step();
      expect_equal(" after step " + std::to_string(iteration));
    }
  });
}

Wrap sharded_over(const std::vector<std::string>& dims, bool reshard_after_forward) {
  return [=](MlpStack& module, Mesh& mesh) {
    const fsdp::Options options = {.reshard_after_forward = reshard_after_forward};
    std::vector<std::shared_ptr<void>> units;
    for (const auto& mlp : module.parts())
      units.push_back(fsdp::fully_shard(*mlp, mesh, dims, options));
    units.push_back(fsdp::fully_shard(module, mesh, dims, options));
    return units;
  };
}

TEST(TensorParallel, test_2d_mlp_with_nd_mesh) {
  for (const bool reshard : {false, true}) {
    for (const bool checkpointed : {false, true}) {
      for (const int64_t dim : {3, 5, 16, 17}) {
        expect_parity({.mesh = {{"pp", 1}, {"dp", 2}, {"tp", 2}},
                       .data_parallel = {"dp"},
                       .shard = "dp",
                       .dim = dim,
                       .checkpointed = checkpointed},
                      sharded_over({"dp"}, reshard));
      }
    }
  }
  // PyTorch's mesh of 8 ranks: both pipeline ranks train the whole model.
  expect_parity(
      {.mesh = {{"pp", 2}, {"dp", 2}, {"tp", 2}}, .data_parallel = {"dp"}, .shard = "dp", .dim = 5},
      sharded_over({"dp"}, true));
}

TEST(TensorParallel, test_3d_mlp_with_nd_mesh) {
  for (const bool reshard : {false, true}) {
    for (const bool checkpointed : {false, true}) {
      for (const int64_t dim : {3, 5, 16, 17}) {
        expect_parity({.mesh = {{"dp_replicate", 2}, {"dp_shard", 2}, {"tp", 2}},
                       .data_parallel = {"dp_replicate", "dp_shard"},
                       .shard = "dp_shard",
                       .dim = dim,
                       .checkpointed = checkpointed},
                      sharded_over({"dp_replicate", "dp_shard"}, reshard));
      }
    }
  }
}

TEST(TensorParallel, test_replicate_tp) {
  for (const bool checkpointed : {false, true}) {
    for (const int64_t dim : {3, 5, 16, 17}) {
      expect_parity({.mesh = {{"dp_replicate", 2}, {"tp", 2}},
                     .data_parallel = {"dp_replicate"},
                     .shard = "",
                     .dim = dim,
                     .checkpointed = checkpointed},
                    [](MlpStack& module, Mesh& mesh) {
                      std::vector<std::shared_ptr<void>> units;
                      for (const auto& mlp : module.parts())
                        units.push_back(ddp::replicate(*mlp, mesh, {"dp_replicate"}));
                      units.push_back(ddp::replicate(module, mesh, {"dp_replicate"}));
                      return units;
                    });
    }
  }
}

// More ranks than features: of 3 hidden units over 4 ranks the last has none.
TEST(TensorParallel, EmptyParts) {
  for (const int64_t dim : {1, 2}) {
    expect_parity(
        {.mesh = {{"dp", 1}, {"tp", 4}}, .data_parallel = {"dp"}, .shard = "", .dim = dim},
        [](MlpStack&, Mesh&) { return std::vector<std::shared_ptr<void>>(); });
  }
}

// PyTorch's tp_with_fsdp_offloading counts these: one all-reduce per MLP in forward, and one in
// backward but for the first, whose input needs no gradient. A mesh dimension of one rank neither
// gathers nor reduces.
TEST(TensorParallel, Collectives) {
  on_ranks(4, [](Rank& self) {
    comms::World recorded = self.world->wrapped(
        [&](comms::BackendPtr backend) { return comms::record(backend, self.log); });
    Mesh mesh(recorded, {{"dp", 1}, {"tp", 4}});
    const auto module = std::make_shared<MlpStack>(16, false);
    const auto tp = parallelize(*module, kPlan, mesh, "tp");
    const at::Tensor input = tests::random_input({4, 16}, 42);
    for (int iteration = 0; iteration < 2; ++iteration) {
      self.log->clear();
      const at::Tensor loss = modules::forward(module, input).sum();
      EXPECT_EQ(self.log->count("allreduce"), 3);
      EXPECT_EQ(self.log->bytes("allreduce"), 3 * 4 * 16 * 8);
      EXPECT_EQ(self.log->calls().size(), 3u);
      self.log->clear();
      loss.backward();
      EXPECT_EQ(self.log->count("allreduce"), 2);
      EXPECT_EQ(self.log->calls().size(), 2u);
    }
  });
}

}  // namespace
}  // namespace pipewright::tp
