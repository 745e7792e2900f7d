#ifndef PIPEWRIGHT_TESTS_DEVICE_MACHINE_H_
#define PIPEWRIGHT_TESTS_DEVICE_MACHINE_H_

#include <c10/core/Stream.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

// The state of the test device (device.h): streams with operations that have been queued but have
// not run, the memory that they use, and what the tests asked for. Plain values; scheduler.h runs
// operations, races.h checks their accesses, memory.h allocates.

namespace pipewright::testdevice {

constexpr c10::DeviceType kDeviceType = c10::DeviceType::PrivateUse1;
// The devices of the machine. Autograd starts one thread for each at the first backward.
constexpr int kNumDevices = 8;

struct Stream;
struct Block;

// A vector clock: by Stream::index, how many operations of that stream are ordered before a point.
using Clock = std::vector<size_t>;

// A point in a stream, with what is ordered before it once the point has been reached.
struct Event {
  Stream* stream;
  size_t position;                       // operations of the stream up to and including this point
  std::shared_ptr<Clock> clock;          // written when the stream reaches the point
  std::shared_ptr<double> seconds = {};  // of the host's steady clock, likewise
};

// Bytes of a block that an operation reads or writes.
struct Use {
  Block* block;
  size_t begin, end;
  bool write;
};

// A kernel that several streams run together, once all of them have reached it: communication. The
// operations of a group call of NCCL form several meetings at one place of a stream.
struct Meeting {
  struct Party {
    Stream* stream;
    size_t position;  // of its operation in the stream
    std::vector<Use> uses;
    std::function<void()> on_abort;  // what an aborted communicator leaves in the outputs
    bool aborted = false;
  };
  std::string name;
  size_t expected;  // number of parties
  std::vector<Party> parties;
  std::function<void()> body;
};

// One entry of a stream: a kernel, a wait for an event, or this stream's part of meetings.
struct Operation {
  std::string name;
  std::function<void()> kernel = {};
  std::optional<Event> awaited = {};
  std::vector<std::shared_ptr<Meeting>> meetings = {};  // that have not taken place
  std::vector<Use> uses = {};                           // of a kernel
  Clock host = {};                                      // what its issuer knew to be done
};

struct Stream {
  int device;
  int64_t id;
  size_t index;  // in clocks
  uint64_t run;  // Machine::run in which it was created
  std::deque<Operation> queue;
  size_t issued = 0, done = 0;
  size_t begun = 0;      // the last operation that left the hardware queue to wait for peers
  double eagerness = 0;  // the probability that it runs its next operation by itself
  Clock clock;           // what is ordered before its last operation that ran, which is included
};

// A piece of device memory, of one stream as in CUDA's caching allocator.
struct Block {
  struct Access {
    size_t begin, end;
    const Stream* stream;
    size_t position;
    bool write;
    std::string name;
  };
  char* memory;
  size_t size;
  size_t requested;              // of `size`, by the tensor that has it
  Stream* stream;                // on which it was allocated
  std::vector<Stream*> used_by;  // other streams, by recordStream
  std::vector<Event> pending;    // after it was freed: the ends of these uses
  std::vector<Access> accesses;  // that a later one may conflict with
};

// What a blocked host thread waits for.
struct Target {
  Stream* stream;
  size_t until;
  bool wants_all = false;  // to be woken by whatever is issued or run, not only at `until`
  std::condition_variable_any wake = {};
};

// A rank that waits for something outside of the device, such as a key in the store (store.h).
struct WaitElsewhere {
  int rank;
  std::function<bool()> is_over;
  std::condition_variable_any wake = {};
};

// All state, behind one mutex. There is one machine per process, because c10 has one guard and one
// allocator per device type.
struct Machine {
  std::recursive_mutex mutex;
  uint64_t changes = 0;  // counts what is issued, run or announced

  uint64_t seed = 0;
  uint64_t run = 0;         // counts calls of seed(); the streams of earlier runs are done
  std::mt19937_64 choices;  // what runs when all ranks wait
  std::map<int, std::mt19937_64> random;  // by device: what its streams run by themselves

  std::map<std::pair<int, int64_t>, std::unique_ptr<Stream>> streams;  // by device and id
  std::vector<std::unique_ptr<Stream>> old_streams;  // of earlier runs; events may refer to them
  std::map<int, int64_t> last_stream_id;             // by device, so that thread timing is no input

  int hardware_queues = 0;  // per device; 0: each stream has its own
  // By device and number of the queue: what has not begun, by stream and position.
  std::map<std::pair<int, int64_t>, std::deque<std::pair<Stream*, size_t>>> queued;

  std::map<int, Clock> host;  // by device: what its host thread knows to be done
  std::set<int> ranks;        // by device: the threads that are ranks
  std::vector<Target*> targets;
  std::vector<WaitElsewhere*> elsewhere;

  std::map<Stream*, std::map<size_t, std::vector<Block*>>> free_blocks;  // by size; last freed last
  std::deque<Block*> deferred;                                           // wait for `pending`
  std::map<const char*, Block*> blocks;                                  // by address

  struct Bytes {
    int64_t now = 0, peak = 0;
  };
  std::map<int, Bytes> bytes;  // by device: what cannot be allocated again

  std::map<std::string, int64_t> host_syncs;
  std::map<std::string, int64_t> kernels;
  // By device: communication and what launch() queued, in the order of execution.
  std::vector<std::pair<int, std::string>> ran;
  std::vector<std::string> races;
  std::vector<std::string> errors;
  std::string sticky_error;  // thrown by every later host synchronisation
  bool forbid_host_syncs = false;
  bool ignore_event_waits = false;
  bool ignore_record_stream = false;
  bool rounds_otherwise = false;
};
Machine& machine();

using Lock = std::unique_lock<std::recursive_mutex>;

// The state of a c10 stream; created at the first use.
Stream& stream_of(const c10::Stream& stream);
c10::Stream c10_stream(const Stream& stream);

}  // namespace pipewright::testdevice

#endif  // PIPEWRIGHT_TESTS_DEVICE_MACHINE_H_
