#include "tests/device/device.h"

#include <ATen/Context.h>
#include <c10/core/Event.h>

#include "tests/device/current.h"
#include "tests/device/host_alias.h"
#include "tests/device/memory.h"
#include "tests/device/races.h"
#include "tests/device/scheduler.h"

namespace pipewright::testdevice {
namespace {

thread_local bool is_rank = false;

}  // namespace

void seed(uint64_t seed) {
  drain();
  const Lock lock(machine().mutex);
  Machine& m = machine();
  m.seed = seed;
  ++m.run;
  m.choices.seed(77 * seed + 5);
  m.random.clear();
  for (int i = 0; i < kNumDevices; ++i) {
    m.random[i].seed(1000003 * seed + static_cast<uint64_t>(i));
    at::Generator generator = at::globalContext().defaultGenerator(device(i));
    generator.set_current_seed(seed);
  }
  for (auto& [place, stream] : m.streams) {
    stream->clock.clear();
    m.old_streams.push_back(std::move(stream));
  }
  m.streams.clear();
  m.last_stream_id.clear();
  m.host.clear();
  release_free_blocks();
  for (auto& [address, block] : m.blocks) block->accesses.clear();
  m.bytes.clear();
  m.host_syncs.clear();
  m.kernels.clear();
  m.ran.clear();
  m.races.clear();
  m.errors.clear();
  m.sticky_error.clear();
  m.forbid_host_syncs = m.ignore_event_waits = m.ignore_record_stream = false;
  m.rounds_otherwise = false;
  m.hardware_queues = 0;
  m.queued.clear();
}

void order(const c10::Stream& first, const c10::Stream& second) {
  c10::Event event(kDeviceType);
  event.record(first);
  event.block(second);
}

c10::Stream new_stream(int index) {
  const Lock lock(machine().mutex);
  const c10::Stream stream(c10::Stream::UNSAFE, device(index), ++machine().last_stream_id[index]);
  stream_of(stream);
  return stream;
}

RankScope::RankScope(int rank) : rank_(rank) {
  const Lock lock(machine().mutex);
  machine().ranks.insert(rank_);
}

RankScope::~RankScope() {
  const Lock lock(machine().mutex);
  machine().ranks.erase(rank_);
  announce();
}

void RankScope::enter() { is_rank = true; }

bool RankScope::is_entered() { return is_rank; }

std::map<std::string, int64_t> host_syncs() {
  const Lock lock(machine().mutex);
  return machine().host_syncs;
}

void forbid_host_syncs(bool forbid) {
  const Lock lock(machine().mutex);
  machine().forbid_host_syncs = forbid;
}

void synchronize(int index) {
  Lock lock(machine().mutex);
  count_host_sync("synchronizeDevice");
  std::vector<Stream*> streams;
  for (auto& [place, stream] : machine().streams)
    if (place.first == index) streams.push_back(stream.get());
  for (Stream* stream : streams) {
    run_until(lock, *stream, stream->issued);
    merge(machine().host[index], stream->clock);
  }
  throw_sticky_error();
}

void drain() {
  Lock lock(machine().mutex);
  std::vector<Stream*> streams;
  for (auto& [place, stream] : machine().streams) streams.push_back(stream.get());
  for (Stream* stream : streams) {
    run_until(lock, *stream, stream->issued);
    merge(machine().host[stream->device], stream->clock);
  }
}

std::vector<std::string> races() {
  const Lock lock(machine().mutex);
  return machine().races;
}

std::vector<std::string> errors() {
  const Lock lock(machine().mutex);
  return machine().errors;
}

std::map<std::string, int64_t> kernels() {
  const Lock lock(machine().mutex);
  return machine().kernels;
}

int64_t peak_bytes(int device) {
  const Lock lock(machine().mutex);
  return machine().bytes[device].peak;
}

void restart_peak(int device) {
  const Lock lock(machine().mutex);
  machine().bytes[device].peak = machine().bytes[device].now;
}

std::vector<std::string> execution_order(int device) {
  const Lock lock(machine().mutex);
  std::vector<std::string> names;
  for (const auto& [on, name] : machine().ran)
    if (on == device) names.push_back(name);
  return names;
}

void ignore_event_waits(bool ignore) {
  const Lock lock(machine().mutex);
  machine().ignore_event_waits = ignore;
}

void ignore_record_stream(bool ignore) {
  const Lock lock(machine().mutex);
  machine().ignore_record_stream = ignore;
}

void limit_hardware_queues(int queues) {
  const Lock lock(machine().mutex);
  machine().hardware_queues = queues;
  machine().queued.clear();
}

void round_otherwise(bool otherwise) {
  const Lock lock(machine().mutex);
  machine().rounds_otherwise = otherwise;
}

bool rounds_otherwise() {
  const Lock lock(machine().mutex);
  return machine().rounds_otherwise;
}

void launch(const std::string& name, const std::vector<at::Tensor>& reads,
            const std::vector<at::Tensor>& writes, std::function<void()> kernel) {
  const Lock lock(machine().mutex);
  ++machine().kernels[name];
  const auto logged = [=, device = current_device()] {
    machine().ran.emplace_back(device, name);
    kernel();
  };
  issue(stream_of(current_stream(current_device())),
        {.name = name, .kernel = logged, .uses = uses_of(reads, writes)});
  drift(current_device());
}

at::Tensor on_host(const at::Tensor& tensor) { return HostAliases()(tensor); }

}  // namespace pipewright::testdevice
