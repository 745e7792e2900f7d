#ifndef PIPEWRIGHT_MODULES_DATA_PARALLEL_H_
#define PIPEWRIGHT_MODULES_DATA_PARALLEL_H_

// What the executor asks of whoever keeps a stage's parameters on several ranks: fsdp, ddp, or a
// trainer's own. An interface alone, one object a stage.
//
// Each call begins something and returns; the two wait_ calls order the current stream behind it,
// or block where there are no streams. All are made on the thread that runs the step, in the order
// of the rank's list. The gradient's scale is not settled here: what enters backward on the last
// stage is scaled already.

namespace pipewright::modules {

class DataParallel {
 public:
  virtual ~DataParallel() = default;

  // Before the first action of a step that trains, on all ranks that have the stage.
  virtual void step_begins() {}
  // UNSHARD: gathers the stage's parameters.
  virtual void unshard() = 0;
  // Before the first compute of the stage behind an UNSHARD.
  virtual void wait_unshard() = 0;
  // Whether a resharded stage has no whole parameters, so that a W that stands on one (weight-free
  // W) must not read them.
  virtual bool frees_parameters() const { return false; }
  // RESHARD: frees the gathered parameters. Never between an unshard and its wait.
  virtual void reshard() = 0;
  // Before each B, I and W of the stage; in a B of the last stage once more behind the loss's.
  // `last`: no later B or W of the stage stands before its next REDUCE_GRAD, so that gradients may
  // be reduced as they become ready.
  virtual void before_backward(int microbatch, bool last) = 0;
  // REDUCE_GRAD: reduces the gradients that have been gathered since the last one.
  virtual void reduce_grad() = 0;
  // At the end of a step, for stages that reduced.
  virtual void wait_reduce() = 0;
  // The step has failed, here or elsewhere: ends what is on its way, so that nobody waits for it.
  virtual void abort() {}
};

// One rank has all of the stage.
class NoDataParallel final : public DataParallel {
 public:
  void unshard() override {}
  void wait_unshard() override {}
  void reshard() override {}
  void before_backward(int /*microbatch*/, bool /*last*/) override {}
  void reduce_grad() override {}
  void wait_reduce() override {}
};

}  // namespace pipewright::modules

#endif  // PIPEWRIGHT_MODULES_DATA_PARALLEL_H_
