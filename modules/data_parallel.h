#ifndef PIPEWRIGHT_MODULES_DATA_PARALLEL_H_
#define PIPEWRIGHT_MODULES_DATA_PARALLEL_H_

namespace c10d {
class Backend;
}  // namespace c10d

namespace pipewright::modules {

// The parameters of one pipeline stage, spread over a data-parallel group, as the executor sees
// them. fsdp and ddp implement it; a trainer may supply another implementation. One object per
// stage.
//
// unshard() and reduce_grad() start communication and return. wait_unshard() and wait_reduce() make
// the current stream wait for it, or block on devices without streams. All methods are called on
// the thread that runs the step, in the order of the rank's program. Gradients need no scaling here
// beyond the average over the group: the loss gradient of the last stage is scaled already.
class DataParallel {
 public:
  virtual ~DataParallel() = default;

  // The group over which gradients are reduced: its ranks step together, so a wrong batch on one of
  // them ends the step on all. Null if there is none, or if it is unknown.
  virtual c10d::Backend* group() const { return nullptr; }
  // Before the first action of a training step, on all ranks that have the stage.
  virtual void step_begins() {}
  // UNSHARD: starts to gather the stage's parameters.
  virtual void unshard() = 0;
  // Before the first compute of the stage after an UNSHARD, or before its RESHARD if there is none.
  virtual void wait_unshard() = 0;
  // Whether RESHARD frees the full parameters. A W that the program puts on a resharded stage
  // (weight-free W) must then not read them.
  virtual bool frees_parameters() const { return false; }
  // RESHARD, or the end of a step that has reduced: frees the gathered parameters. Never
  // called between unshard and wait_unshard.
  virtual void reshard() = 0;
  // Before each B, I and W of the stage; in a B or W of the last stage again after the loss's part.
  // `last`: the stage has no later B or W before its next REDUCE_GRAD, so gradients may be reduced
  // as they become ready.
  virtual void before_backward(int microbatch, bool last) = 0;
  // Called after the B or W that was the `last`, when all gradients are there. This place in the
  // program is the same on all ranks, but ranks may have different gradients, and get them at
  // different times. So an implementation that starts some reductions during that B or W starts
  // all others here: then all ranks have them in the same order, also relative to other stages'
  // reductions and to gathers.
  virtual void after_last_backward() {}
  // REDUCE_GRAD: starts to reduce the gradients accumulated since the previous one, except those
  // whose reduction has already started.
  virtual void reduce_grad() = 0;
  // WAIT_REDUCE_GRAD, or the end of a step whose program has none, if the stage had a REDUCE_GRAD.
  virtual void wait_reduce() = 0;
  // The step has failed, on this rank or on another one: aborts pending communication, so that no
  // rank waits for it.
  virtual void abort() {}
};

// For a stage that exists on one rank only: there is nothing to gather or reduce.
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
