// One rank of the Gloo tests; gloo_test starts several of them as processes: gloo_worker MODE
//
//   parity   trains every schedule on this number of ranks, and compares with the reference
//   random N trains N random models, and compares with the reference
//   throw    the stage of the last rank throws in its second step
//   die      the last rank kills itself in its second step
//   memory N M STEPS  compares the peak memory of steps of M microbatches, whose messages have N
//            floats, with the certificate
//   evaluation  the memory of the first rank while the second one is slow
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <thread>

#include "pipewright/comms/gloo/gloo.h"
#include "pipewright/schedule/verify/verify.h"
#include "pipewright/schedules/registry.h"
#include "tests/executor/against_plain.h"
#include "tests/executor/models.h"
#include "tests/executor/random_models.h"
#include "tests/support/catalogue/catalogue.h"
#include "tests/support/meter/meter.h"

namespace pipewright::executor {
namespace {

int parity(comms::World& world) {
  constexpr int kMicrobatches = 8;
  int failures = 0;
  for (const schedules::ScheduleSpec* spec : tests::schedules_of_one_replica()) {
    const schedules::Shape shape{world.size(), schedules::default_stages(*spec, world.size()),
                                 kMicrobatches};
    for (const ModelKind kind : {ModelKind::kMlp, ModelKind::kTransformer}) {
      const ir::Program program = make_program(*spec, shape);
      const int64_t batch = 2 * kMicrobatches + 3;
      Trained trained;
      trained.grads.resize(static_cast<size_t>(shape.stages));
      trained.weights.resize(static_cast<size_t>(shape.stages));
      train_rank(program, make_model(kind, shape.stages, batch), world, {}, &trained);
      const std::string difference =
          compare(train_reference(make_model(kind, shape.stages, batch), kMicrobatches), trained,
                  program, program.placement.stages_of(world.rank()));
      std::printf("%s %s %s\n", std::string(spec->name).c_str(),
                  kind == ModelKind::kMlp ? "mlp" : "transformer",
                  difference.empty() ? "equal" : difference.c_str());
      failures += !difference.empty();
    }
  }
  return failures == 0 ? 0 : 1;
}

int random(comms::World& world, int count) {
  constexpr int kRandomSteps = 2;
  int compared = 0;
  for (uint64_t seed = 0; compared < count; ++seed) {
    const RandomCase drawn = draw_case(seed);
    const ir::Program& program = drawn.program;
    Outcome expected;
    try {
      expected = train_plain(drawn.make(false), program.placement.num_stages(),
                             program.num_microbatches, kRandomSteps);
    } catch (const std::exception&) {
      continue;  // cannot be trained
    }
    const std::string differs =
        difference(part_of(expected, program.placement, world.rank()),
                   train_rank_of(program, drawn.make(true), world, kRandomSteps));
    ++compared;
    if (differs.empty()) continue;
    std::printf("seed %d: %s%s", static_cast<int>(seed), differs.c_str(),
                drawn.description.c_str());
    return 1;
  }
  std::printf("%d models equal\n", compared);
  return 0;
}

int failure(comms::World& world, bool dies) {
  // The launcher ends the remaining ranks; this one must report its own error first.
  std::signal(SIGTERM, SIG_IGN);
  const int ranks = world.size();
  const ir::Program program =
      make_program(*schedules::find_schedule("1F1B"), {ranks, ranks, 2 * ranks});
  int step = 0;
  std::map<int, LocalStage> stages;
  stages[world.rank()].stage = std::make_shared<ModuleStage>([&](const Tensors& in) {
    if (step == 1 && world.rank() == ranks - 1) {
      if (dies) std::raise(SIGKILL);
      throw std::runtime_error("out of luck");
    }
    return Tensors{in[0] * at::ones({1}).set_requires_grad(true)};
  });
  Executor executor(program, stages, world,
                    {.loss = [](const Tensors& out) { return out[0].sum(); }});
  try {
    for (; step < 2; ++step) executor.step({.inputs = {at::ones({4 * ranks})}});
  } catch (const StepError& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
  return 0;
}

// The peak of a step, in activations of one message. Each microbatch saves
// kSaved of them between its F and its B.
int memory(comms::World& world, int64_t numel, int microbatches, int steps) {
  constexpr int kSaved = 144;
  const auto bytes = static_cast<double>(numel) * sizeof(float);
  const ir::Program program =
      make_program(*schedules::find_schedule("1F1B"), {world.size(), world.size(), microbatches});
  const schedule::RankCertificate certificate =
      schedule::certify(program)[static_cast<size_t>(world.rank())];
  const double expected =
      kSaved * certificate.activations.amount + certificate.receive_buffers.amount;
  const at::Tensor weight = at::ones({1}).set_requires_grad(true);
  std::map<int, LocalStage> stages;
  stages[world.rank()].stage = std::make_shared<ModuleStage>([&](const Tensors& in) {
    at::Tensor x = in[0] * weight;  // saves in[0]
    for (int i = 1; i < kSaved; ++i) x = x.sin();
    return Tensors{x};
  });
  const Batch batch = {.inputs = {at::ones({microbatches, numel})}};
  tests::Meter meter;
  Executor executor(program, stages, world,
                    {.loss = [](const Tensors& out) { return out[0].sum(); }});
  const auto peak_of = [&](const std::function<void()>& body) {
    executor.confirm();
    const int64_t before = meter.bytes();
    meter.restart_peak();
    body();
    return static_cast<double>(meter.peak() - before) / bytes;
  };
  std::vector<double> peaks;
  for (int step = 0; step < steps; ++step) peaks.push_back(peak_of([&] { executor.step(batch); }));
  std::printf("certificate %.0f, step 10 %.1f, last step %.1f\n", expected, peaks[9], peaks.back());
  const auto near = [](double one, double other) { return std::abs(one - other) <= 0.05 * other; };
  return near(peaks[9], expected) && near(peaks.back(), peaks[9]) ? 0 : 1;
}

// The peak of an evaluation in which the second rank is slow, in messages: of the first rank, which
// could send all of them before the second has read them.
int evaluation(comms::World& world) {
  constexpr int64_t kNumel = 1 << 18;
  constexpr int kMicrobatches = 64;
  const ir::Program program =
      make_program(*schedules::find_schedule("1F1B"), {2, 2, kMicrobatches});
  std::map<int, LocalStage> stages;
  stages[world.rank()].stage = std::make_shared<ModuleStage>([&](const Tensors& in) {
    if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return Tensors{in[0] + 1};
  });
  const Batch batch = {.inputs = {at::ones({kMicrobatches, kNumel})}};
  tests::Meter meter;
  Executor executor(program, stages, world,
                    {.loss = [](const Tensors& out) { return out[0].mean(); }});
  executor.eval(batch, false);  // learns shapes
  const int64_t before = meter.bytes();
  meter.restart_peak();
  const StepResult result = executor.eval(batch, false);
  const double peak = static_cast<double>(meter.peak() - before) / (kNumel * sizeof(float));
  bool is_right = true;
  for (const at::Tensor& loss : result.losses) is_right = is_right && loss.item<float>() == 3;
  std::printf("peak %.1f messages, %s\n", peak, is_right ? "right" : "wrong");
  return is_right && peak < 20 ? 0 : 1;
}

}  // namespace
}  // namespace pipewright::executor

int main(int argc, char** argv) {
  using namespace pipewright;
  at::set_num_threads(1);
  if (argc < 2) return 2;
  try {
    comms::World world =
        comms::gloo_world(comms::read_environment(), std::chrono::milliseconds(60000));
    if (std::strcmp(argv[1], "parity") == 0) return executor::parity(world);
    if (argc == 3 && std::strcmp(argv[1], "random") == 0)
      return executor::random(world, std::atoi(argv[2]));
    if (argc == 2 && std::strcmp(argv[1], "evaluation") == 0) return executor::evaluation(world);
    if (argc == 5 && std::strcmp(argv[1], "memory") == 0)
      return executor::memory(world, std::atoll(argv[2]), std::atoi(argv[3]), std::atoi(argv[4]));
    return executor::failure(world, std::strcmp(argv[1], "die") == 0);
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
