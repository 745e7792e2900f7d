#include "pipewright/schedule/simulate/event_graph.h"

#include "pipewright/schedule/simulate/event_walk.h"

namespace pipewright::schedule {

// The sink of a walk (event_walk.h) that stores the actions and dependencies as a graph.
class EventGraphSink {
 public:
  explicit EventGraphSink(const ir::Schedule& schedule) {
    size_t actions = 0, dependencies = 0;
    for (const ir::Row& row : schedule.rows) {
      for (const ir::Action& action : row) {
        actions += !action.is_idle();
        // Upper bounds: a SEND has four dependencies, a RECV three, a compute two per part and the
        // previous compute.
        dependencies += ir::is_send(action.kind())      ? 4
                        : ir::is_receive(action.kind()) ? 3
                                                        : 1 + 2 * action.parts().size();
      }
    }
    graph_.order_.reserve(actions);
    graph_.first_.reserve(actions + 1);
    graph_.dependencies_.reserve(dependencies);
    graph_.first_.push_back(0);
  }

  void wait_for(const Dependency& dependency) { graph_.dependencies_.push_back(dependency); }
  void add(uint32_t number, const ir::Action&) {
    graph_.order_.push_back(number);
    graph_.first_.push_back(graph_.dependencies_.size());
  }
  EventGraph take() { return std::move(graph_); }

 private:
  EventGraph graph_;
};

std::optional<EventGraph> EventGraph::of_order(const ir::ComputeOrder& order) {
  EventGraphSink sink(order);
  if (!OrderWalk(order, &sink).run()) return std::nullopt;
  return sink.take();
}

std::optional<EventGraph> EventGraph::of_program(const ir::Program& program,
                                                 ir::ChannelModel channels,
                                                 ir::ChannelCapacity capacity) {
  EventGraphSink sink(program);
  if (!ProgramWalk(program, channels, capacity, &sink).run()) return std::nullopt;
  return sink.take();
}

}  // namespace pipewright::schedule
