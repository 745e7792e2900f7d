#include "tests/device/memory.h"

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>

#include "tests/device/current.h"
#include "tests/device/races.h"
#include "tests/device/scheduler.h"

namespace pipewright::testdevice {
namespace {

constexpr size_t kSmallestBlock = 64;

// For meters and profilers.
void report(const Block& block, int64_t bytes) {
  c10::reportMemoryUsageToProfiler(
      block.memory, bytes, 0, 0,
      {kDeviceType, static_cast<c10::DeviceIndex>(block.stream->device)});
}

// Returns a block to its stream's free list. Its memory becomes garbage when the stream gets there.
void give_back(Block* block) {
  Stream& stream = *block->stream;
  if (stream.run == machine().run) {
    machine().bytes[stream.device].now -= static_cast<int64_t>(block->requested);
    issue(stream, {.name = "the free of a tensor",
                   .kernel = [block] { poison(block->memory, block->size); },
                   .uses = {{block, 0, block->size, true}}});
  }
  machine().free_blocks[&stream][block->size].push_back(block);
}

// As CUDA's allocator does at every allocation: gives back blocks whose other uses are done.
void poll_deferred() {
  std::deque<Block*>& deferred = machine().deferred;
  for (size_t n = deferred.size(); n-- > 0;) {
    Block* block = deferred.front();
    deferred.pop_front();
    const bool done = std::ranges::all_of(
        block->pending, [](const Event& event) { return event.stream->done >= event.position; });
    if (!done) {
      deferred.push_back(block);
      continue;
    }
    for (const Event& event : block->pending) merge(machine().host[block->stream->device], event);
    block->pending.clear();
    give_back(block);
  }
}

void free_block(void* context) {
  const Lock lock(machine().mutex);
  auto* block = static_cast<Block*>(context);
  report(*block, -static_cast<int64_t>(block->requested));
  for (Stream* stream : block->used_by) block->pending.push_back(record_event(*stream));
  block->used_by.clear();
  if (block->pending.empty())
    give_back(block);
  else
    machine().deferred.push_back(block);
}

class DeviceAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override { return allocate_on(current_device(), bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK(false, "test device: copy_data");
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    const Lock lock(machine().mutex);
    if (!data.get() || data.get_deleter() != &free_block || machine().ignore_record_stream) return;
    auto* block = static_cast<Block*>(data.get_context());
    Stream& user = stream_of(stream);
    std::vector<Stream*>& users = block->used_by;
    if (&user != block->stream && std::ranges::find(users, &user) == users.end())
      users.push_back(&user);
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return {}; }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
};

std::set<const void*>& pinned_memory() {
  static auto* const pointers = new std::set<const void*>;
  return *pointers;
}

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const Lock lock(machine().mutex);
    void* data = std::aligned_alloc(kSmallestBlock, (bytes / kSmallestBlock + 1) * kSmallestBlock);
    poison(data, bytes);
    pinned_memory().insert(data);
    return {data, data, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

 private:
  static void release(void* data) {
    const Lock lock(machine().mutex);
    pinned_memory().erase(data);
    std::free(data);
  }
};

}  // namespace

c10::DeviceAllocator& device_allocator() {
  static auto* const allocator = new DeviceAllocator;
  return *allocator;
}

c10::Allocator& pinned_allocator() {
  static auto* const allocator = new PinnedAllocator;
  return *allocator;
}

bool is_pinned(const void* data) {
  const Lock lock(machine().mutex);
  return pinned_memory().contains(data);
}

c10::DataPtr allocate_on(int device, size_t bytes) {
  const Lock lock(machine().mutex);
  const c10::Device c10_device(kDeviceType, static_cast<c10::DeviceIndex>(device));
  if (bytes == 0) return {nullptr, c10_device};
  Stream& stream = stream_of(current_stream(device));
  drift(device);
  poll_deferred();
  size_t size = kSmallestBlock;
  while (size < bytes) size *= 2;
  std::vector<Block*>& available = machine().free_blocks[&stream][size];
  Block* block = nullptr;
  if (!available.empty()) {
    block = available.back();
    available.pop_back();
  } else {
    auto* memory = static_cast<char*>(std::aligned_alloc(kSmallestBlock, size));
    block = new Block{memory, size, 0, &stream, {}, {}, {}};
    poison(memory, size);
    machine().blocks[memory] = block;
  }
  block->requested = bytes;
  report(*block, static_cast<int64_t>(bytes));
  Machine::Bytes& used = machine().bytes[device];
  used.now += static_cast<int64_t>(bytes);
  used.peak = std::max(used.peak, used.now);
  return {block->memory, block, &free_block, c10_device};
}

Block* block_of(const void* data) {
  const auto* address = static_cast<const char*>(data);
  const auto after = machine().blocks.upper_bound(address);
  if (after == machine().blocks.begin()) return nullptr;
  Block* block = std::prev(after)->second;
  return address < block->memory + block->size ? block : nullptr;
}

void resize_storage(const c10::Storage& storage, size_t bytes) {
  const Lock lock(machine().mutex);
  if (bytes == storage.nbytes()) return;
  const int device = storage.device().index();
  c10::DataPtr data = allocate_on(device, bytes);
  void* to = data.get();
  const void* from = storage.data();
  if (const size_t both = std::min(bytes, storage.nbytes()); both > 0) {
    issue(stream_of(current_stream(device)),
          {.name = "resize a storage",
           .kernel = [=] { std::memcpy(to, from, both); },
           .uses = {{block_of(from), 0, both, false}, {block_of(to), 0, both, true}}});
  }
  storage.set_data_ptr_noswap(std::move(data));
  storage.set_nbytes(bytes);
}

void add_uses(std::vector<Use>& uses, const std::vector<at::Tensor>& tensors, bool write) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.numel() == 0 || tensor.device().type() != kDeviceType) continue;
    const auto* data = static_cast<const char*>(tensor.const_data_ptr());
    Block* block = block_of(data);
    if (!block) continue;
    int64_t span = 1;
    for (int64_t dim = 0; dim < tensor.dim(); ++dim)
      span += (tensor.size(dim) - 1) * tensor.stride(dim);
    const auto begin = static_cast<size_t>(data - block->memory);
    uses.push_back(
        {block, begin, begin + static_cast<size_t>(span) * tensor.element_size(), write});
  }
}

std::vector<Use> uses_of(const std::vector<at::Tensor>& reads,
                         const std::vector<at::Tensor>& writes) {
  std::vector<Use> uses;
  add_uses(uses, reads, false);
  add_uses(uses, writes, true);
  return uses;
}

void release_free_blocks() {
  Machine& m = machine();
  for (auto& [stream, by_size] : m.free_blocks) {
    for (auto& [size, blocks] : by_size) {
      for (Block* block : blocks) {
        m.blocks.erase(block->memory);
        std::free(block->memory);
        delete block;
      }
    }
  }
  m.free_blocks.clear();
}

void poison(void* memory, size_t bytes) { std::memset(memory, 0xff, bytes); }

}  // namespace pipewright::testdevice
