// Idea: an operation can run if it is at the head of its stream and nothing holds it up: a wait if
// its event has been reached, a meeting if all of its parties are at it; with a limited number of
// hardware queues, if all before it in its queue have begun too. To reach a point of a
// stream, the scheduler follows what the head is held up by (demand()), which finds all operations
// that can run and are needed.
//
// Invariants: while a rank issues, only streams of its own device run, and only operations in which
// no other device takes part; all else runs while all ranks are blocked. An operation runs once,
// with the mutex held.
//
// Complexity: demand() visits each stream at most once. A blocked thread is woken only if there may
// be something for it to do (count_change(), wake_all()): threads that look in vain at each
// operation would cost more than all operations.
#include "tests/device/scheduler.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <stdexcept>
#include <thread>

#include "tests/device/current.h"
#include "tests/device/races.h"

namespace pipewright::testdevice {
namespace {

using std::chrono::milliseconds;

// How long a blocked rank waits for ranks that do nothing, because they are blocked where the
// device does not know, and how long it waits before it calls that a deadlock.
constexpr milliseconds kPatience{50};
constexpr milliseconds kDeadlock{5000};
constexpr milliseconds kAbort{10};  // at least

double host_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<Target*> unreached_targets() {
  std::vector<Target*> unreached;
  for (Target* target : machine().targets)
    if (target->stream->done < target->until) unreached.push_back(target);
  return unreached;
}

void wake_all() {
  for (Target* target : machine().targets) target->wake.notify_all();
  for (WaitElsewhere* wait : machine().elsewhere) wait->wake.notify_all();
}

// Something was issued or has run: wakes those who wait for just that.
void count_change() {
  ++machine().changes;
  for (Target* target : machine().targets)
    if (target->wants_all || target->stream->done >= target->until) target->wake.notify_all();
}

// The next operation of the hardware queue of a stream; null if there is none, or no limit.
const std::pair<Stream*, size_t>* head_of_queue(const Stream& stream) {
  const int queues = machine().hardware_queues;
  if (queues == 0) return nullptr;
  std::deque<std::pair<Stream*, size_t>>& queue =
      machine().queued[{stream.device, stream.id % queues}];
  for (; !queue.empty(); queue.pop_front()) {
    const auto [next, position] = queue.front();
    const bool has_run = next->done >= position;
    // What waits for peers leaves the queue when it begins to wait.
    const bool has_begun = next->done + 1 == position && !next->queue.front().meetings.empty();
    if (has_begun) next->begun = position;
    if (!has_run && !has_begun) return &queue.front();
  }
  return nullptr;
}

// What the head of a stream waits for in its hardware queue; null if it can begin.
const std::pair<Stream*, size_t>* held_up_by(const Stream& stream) {
  const auto* head = head_of_queue(stream);
  const bool can_begin = !head || stream.begun > stream.done || head->first == &stream;
  return can_begin ? nullptr : head;
}

bool at_meeting(const Meeting& meeting) {
  return meeting.parties.size() == meeting.expected &&
         std::ranges::all_of(meeting.parties, [](const Meeting::Party& party) {
           return !party.aborted && party.stream->done + 1 == party.position &&
                  !held_up_by(*party.stream);
         });
}

Meeting::Party& part_of(Meeting& meeting, const Stream& stream) {
  return *std::ranges::find_if(meeting.parties, [&](const Meeting::Party& party) {
    return party.stream == &stream && party.position == stream.done + 1;
  });
}

bool can_run(const Stream& stream) {
  if (stream.queue.empty() || held_up_by(stream)) return false;
  const Operation& head = stream.queue.front();
  if (head.awaited) return head.awaited->stream->done >= head.awaited->position;
  return head.meetings.empty() || std::ranges::any_of(head.meetings, [&](const auto& meeting) {
           return at_meeting(*meeting) || part_of(*meeting, stream).aborted;
         });
}

// A kernel runs on whichever thread waits for it, so it must not see that thread's modes, or the
// number of threads that it has for a product, on which the bits depend: MKL has one per core on a
// thread for which nobody has set the number of at::set_num_threads().
void run_kernel(const std::string& name, const std::function<void()>& kernel) {
  at::init_num_threads();
  const c10::impl::ExcludeDispatchKeyGuard plain(
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset);
  try {
    if (kernel) kernel();
  } catch (const std::exception& error) {
    const std::string what =
        "in kernel `" + name + "`: " + std::string(error.what()).substr(0, 300);
    machine().errors.push_back(what);
    if (machine().sticky_error.empty()) machine().sticky_error = what;
  }
}

void finish_head(Stream& stream) {
  stream.queue.pop_front();
  ++stream.done;
}

void leave_meeting(Stream& stream, const std::shared_ptr<Meeting>& meeting) {
  std::vector<std::shared_ptr<Meeting>>& open = stream.queue.front().meetings;
  std::erase(open, meeting);
  if (open.empty()) finish_head(stream);
}

// The streams of all parties are ordered after those of all others.
void hold(const std::shared_ptr<Meeting>& meeting) {
  Clock all;
  for (const Meeting::Party& party : meeting->parties) {
    advance_clock(*party.stream);
    merge(all, party.stream->clock);
  }
  for (const Meeting::Party& party : meeting->parties)
    for (const Use& use : party.uses) check_use(*party.stream, use, meeting->name);
  for (const Meeting::Party& party : meeting->parties) merge(party.stream->clock, all);
  run_kernel(meeting->name, meeting->body);
  meeting->body = nullptr;
  for (const Meeting::Party& party : meeting->parties)
    machine().ran.emplace_back(party.stream->device, meeting->name);
  for (const Meeting::Party& party : meeting->parties) leave_meeting(*party.stream, meeting);
}

// Runs the head of a stream, or one of its meetings. Expects can_run().
void step(Stream& stream) {
  Operation& head = stream.queue.front();
  if (!head.meetings.empty()) {
    const auto next = std::ranges::find_if(head.meetings, [&](const auto& meeting) {
      return at_meeting(*meeting) || part_of(*meeting, stream).aborted;
    });
    const std::shared_ptr<Meeting> meeting = *next;
    if (part_of(*meeting, stream).aborted) {
      advance_clock(stream);
      run_kernel(meeting->name, part_of(*meeting, stream).on_abort);
      leave_meeting(stream, meeting);
    } else {
      hold(meeting);
    }
  } else {
    advance_clock(stream);
    for (const Use& use : head.uses) check_use(stream, use, head.name);
    const std::function<void()> kernel = std::move(head.kernel);
    run_kernel(head.name, kernel);
    finish_head(stream);
  }
  count_change();
}

// Whether no other device takes part in the head of the stream.
bool is_local(const Stream& stream) {
  const Operation& head = stream.queue.front();
  return head.meetings.empty() && (!head.awaited || head.awaited->stream->device == stream.device);
}

double chance(int device) { return std::uniform_real_distribution<>()(machine().random[device]); }

// Collects the streams that can run now, of those that must run for `stream` to reach `until`.
void demand(Stream& stream, size_t until, std::set<Stream*>& seen, std::vector<Stream*>& able) {
  if (stream.done >= until || stream.queue.empty() || !seen.insert(&stream).second) return;
  const Operation& head = stream.queue.front();
  if (can_run(stream)) {
    able.push_back(&stream);
  } else if (const auto* before = held_up_by(stream)) {
    demand(*before->first, before->second, seen, able);
  } else if (head.awaited) {
    demand(*head.awaited->stream, head.awaited->position, seen, able);
  } else {
    for (const auto& meeting : head.meetings) {
      for (const Meeting::Party& party : meeting->parties) {
        demand(*party.stream, party.position - 1, seen, able);
        if (const auto* other = held_up_by(*party.stream))
          demand(*other->first, other->second, seen, able);
      }
    }
  }
}

// A rank's threads count as one, and those that outlive it (autograd's may drop the last reference
// to a group) do not count.
bool do_all_ranks_wait(const std::vector<Target*>& waiting) {
  std::set<int> busy = machine().ranks;
  for (const Target* target : waiting) busy.erase(target->stream->device);
  for (const WaitElsewhere* wait : machine().elsewhere)
    if (!wait->is_over()) busy.erase(wait->rank);
  return busy.empty();
}

std::string describe_heads(const std::set<Stream*>& streams) {
  std::map<std::pair<int, int64_t>, std::string> sorted;
  for (const Stream* stream : streams) {
    if (stream->queue.empty()) continue;
    const Operation& head = stream->queue.front();
    std::string what = head.name;
    if (head.awaited) what = "wait for stream " + std::to_string(head.awaited->stream->id);
    for (const auto& meeting : head.meetings) {
      what = "`" + meeting->name + "`, to which " + std::to_string(meeting->parties.size()) +
             " of " + std::to_string(meeting->expected) + " ranks came";
    }
    sorted[{stream->device, stream->id}] = what;
  }
  std::string text;
  for (const auto& [place, what] : sorted) {
    text += "\n  device " + std::to_string(place.first) + ", stream " +
            std::to_string(place.second) + ": " + what;
  }
  return text;
}

// Blocks until anything is issued, run or announced; false if nothing is, for a long time.
bool wait_for_change(Lock& lock, Target& target) {
  target.wants_all = true;
  const bool changed = target.wake.wait_for(lock, kDeadlock) == std::cv_status::no_timeout;
  target.wants_all = false;
  return changed;
}

}  // namespace

void announce() {
  ++machine().changes;
  wake_all();
}

size_t issue(Stream& stream, Operation operation) {
  operation.host = machine().host[stream.device];
  stream.queue.push_back(std::move(operation));
  ++stream.issued;
  if (const int queues = machine().hardware_queues)
    machine().queued[{stream.device, stream.id % queues}].emplace_back(&stream, stream.issued);
  count_change();
  return stream.issued;
}

Event record_event(Stream& stream) {
  auto clock = std::make_shared<Clock>();
  auto seconds = std::make_shared<double>();
  const size_t position = issue(stream, {"record an event", [clock, seconds, &stream] {
                                           *clock = stream.clock;
                                           *seconds = host_seconds();
                                         }});
  return {&stream, position, std::move(clock), std::move(seconds)};
}

void wait_event(Stream& stream, const Event& event) {
  if (!machine().ignore_event_waits) issue(stream, {.name = "wait for an event", .awaited = event});
}

double draw_eagerness(int device) {
  constexpr double kChoices[] = {0, 0, 0.2, 1};
  return machine().seed == 0 ? 0 : kChoices[machine().random[device]() % 4];
}

void drift(int device) {
  if (machine().seed == 0) return;
  for (auto& [place, stream] : machine().streams) {
    if (place.first != device) continue;
    if (chance(device) < 0.01) stream->eagerness = draw_eagerness(device);
    while (stream->eagerness > 0 && can_run(*stream) && is_local(*stream) &&
           chance(device) < stream->eagerness)
      step(*stream);
  }
}

void run_until(Lock& lock, Stream& stream, size_t until) {
  Machine& m = machine();
  if (stream.done >= until) return;
  Target mine{&stream, until};
  m.targets.push_back(&mine);
  const auto leave = [&m](Target* target) { std::erase(m.targets, target); };
  const std::unique_ptr<Target, decltype(leave)> leaves(&mine, leave);
  bool patient = true;
  uint64_t known_changes = m.changes;
  while (stream.done < until) {
    std::vector<Target*> waiting = unreached_targets();
    const bool anyone_elsewhere =
        std::ranges::any_of(m.elsewhere, [](const auto* wait) { return !wait->is_over(); });
    const bool all_wait = do_all_ranks_wait(waiting);
    if (std::exchange(known_changes, m.changes) != m.changes) patient = true;
    if (!all_wait && patient) {
      const bool timed_out = mine.wake.wait_for(lock, kPatience) == std::cv_status::timeout;
      if (timed_out && m.changes == known_changes) patient = false;
      continue;
    }
    std::ranges::sort(waiting, {}, [](const Target* target) {
      return std::pair(target->stream->device, target->stream->id);
    });
    if (m.seed != 0) std::ranges::shuffle(waiting, m.choices);
    std::vector<Stream*> able;
    std::set<Stream*> seen;
    for (const Target* target : waiting) {
      demand(*target->stream, target->until, seen, able);
      if (!able.empty()) break;
    }
    if (m.seed != 0 && m.choices() % 4 == 0) {  // work that nobody waits for
      for (auto& [place, other] : m.streams)
        if (can_run(*other)) able.push_back(other.get());
    }
    if (!able.empty()) {
      std::ranges::sort(able, {}, [](const Stream* s) { return std::pair(s->device, s->id); });
      step(*able[m.seed == 0 ? 0 : m.choices() % able.size()]);
      known_changes = m.changes;  // its own work is no reason to be patient again
    } else if ((all_wait && !anyone_elsewhere) || !wait_for_change(lock, mine)) {
      throw std::runtime_error("test device: deadlock, the host waits for streams that are at" +
                               describe_heads(seen));
    }
  }
  // Another thread of this rank may wait too, so that all ranks still wait: somebody else goes on.
  if (do_all_ranks_wait(unreached_targets())) wake_all();
}

bool wait_elsewhere(Lock& lock, const std::function<bool()>& is_over,
                    std::chrono::steady_clock::time_point deadline) {
  Machine& m = machine();
  if (is_over()) return true;
  WaitElsewhere mine{current_device(), is_over};
  m.elsewhere.push_back(&mine);
  wake_all();
  while (!is_over() && mine.wake.wait_until(lock, deadline) == std::cv_status::no_timeout) {
  }
  std::erase(m.elsewhere, &mine);
  return is_over();
}

void await_idle(Lock& lock, int device) {
  std::vector<std::pair<Stream*, size_t>> issued;
  for (const auto& [place, stream] : machine().streams)
    if (place.first == device) issued.emplace_back(stream.get(), stream->issued);
  const auto is_idle = [&] {
    return std::ranges::all_of(
        issued, [](const auto& known) { return try_to_reach(*known.first, known.second); });
  };
  // It takes its time: what has begun at once has begun before any of it shows.
  do {
    lock.unlock();
    std::this_thread::sleep_for(kAbort);
    lock.lock();
  } while (!is_idle());
  for (const auto& [stream, until] : issued) merge(machine().host[device], stream->clock);
}

bool has_reached(Stream& stream, size_t until) {
  std::set<Stream*> seen;
  std::vector<Stream*> able;
  demand(stream, until, seen, able);
  if (!able.empty() && chance(stream.device) < 0.5)
    step(*able[machine().random[stream.device]() % able.size()]);
  if (stream.done < until) return false;
  merge(machine().host[stream.device], stream.clock);
  return true;
}

bool try_to_reach(Stream& stream, size_t until) {
  while (stream.done < until) {
    std::set<Stream*> seen;
    std::vector<Stream*> able;
    demand(stream, until, seen, able);
    if (able.empty()) return false;
    step(*able[0]);
  }
  return true;
}

void count_host_sync(const std::string& caller) {
  ++machine().host_syncs[caller];
  if (machine().forbid_host_syncs) {
    throw std::runtime_error("test device: host synchronisation by `" + caller +
                             "` while they are forbidden");
  }
}

void synchronize_host(Lock& lock, const std::string& caller, const Event& event) {
  count_host_sync(caller);
  run_until(lock, *event.stream, event.position);
  merge(machine().host[event.stream->device], event);
  throw_sticky_error();
}

void throw_sticky_error() {
  if (!machine().sticky_error.empty())
    throw std::runtime_error("test device: error " + machine().sticky_error);
}

}  // namespace pipewright::testdevice
