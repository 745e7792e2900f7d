#include "pipewright/executor/hang/flight_dump.h"

#include <functional>
#include <map>

namespace pipewright::executor {
namespace {

// A pickle of protocol 2, which knows what JSON knows. `dict` and `list` take the function that
// writes their elements.
class Pickle {
 public:
  using Body = std::function<void()>;

  Pickle() : bytes_("\x80\x02") {}

  void text(const std::string& text) {
    bytes_ += 'X';
    little_endian(text.size(), 4);
    bytes_ += text;
  }
  void number(int64_t number) {
    bytes_ += "\x8a\x08";
    little_endian(static_cast<uint64_t>(number), 8);
  }
  void boolean(bool value) { bytes_ += value ? '\x88' : '\x89'; }
  void list(const Body& body) {
    bytes_ += "](";
    body();
    bytes_ += 'e';
  }
  void dict(const Body& body) {
    bytes_ += "}(";
    body();
    bytes_ += 'u';
  }
  void pair(const std::string& first, const std::string& second) {
    text(first);
    text(second);
    bytes_ += '\x86';
  }
  std::string finish() { return bytes_ + '.'; }

 private:
  void little_endian(uint64_t value, int bytes) {
    for (int byte = 0; byte < bytes; ++byte)
      bytes_ += static_cast<char>(value >> (8 * byte) & 0xff);
  }

  std::string bytes_;
};

std::string python_list(const std::vector<int>& numbers) {
  std::string text;
  for (const int number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return "[" + text + "]";
}

}  // namespace

std::string to_pickle(const FlightDump& dump) {
  // PyTorch takes equal numbers of a transfer and a collective for parts of one operation.
  constexpr int64_t kFirstTransfer = 1000000;
  Pickle out;
  const auto text = [&](const char* key, const std::string& value) {
    out.text(key);
    out.text(value);
  };
  const auto number = [&](const char* key, int64_t value) {
    out.text(key);
    out.number(value);
  };
  const auto sizes = [&](const char* key, const std::vector<int64_t>& value) {
    out.text(key);
    out.list([&] {
      out.list([&] {
        for (const int64_t size : value) out.number(size);
      });
    });
  };
  const auto texts = [&](const char* key, const std::string& value) {
    out.text(key);
    out.list([&] { out.text(value); });
  };
  const auto flag = [&](const char* key, bool value) {
    out.text(key);
    out.boolean(value);
  };
  const auto entry = [&](const FlightEntry& one, int64_t id) {
    const FlightGroup& group = dump.groups[one.group];
    number("record_id", id);
    number("pg_id", static_cast<int64_t>(one.group));
    out.text("process_group");
    out.pair(group.name, group.description);
    number("collective_seq_id", one.number);
    number("p2p_seq_id", one.is_p2p ? kFirstTransfer + one.number : 0);
    number("op_id", id);
    text("profiling_name", "nccl:" + one.op);
    sizes("input_sizes", one.input_size);
    texts("input_dtypes", one.dtype);
    sizes("output_sizes", one.output_size);
    texts("output_dtypes", one.dtype);
    // PyTorch takes a collective that ranks have not waited for alike for an error.
    text("state", one.is_p2p && one.is_done ? "completed" : "started");
    number("time_created_ns", one.unix_ns);
    flag("is_p2p", one.is_p2p);
    flag("retired", one.is_done);
    out.text("frames");
    out.list([&] {
      out.dict([&] {
        text("name", one.place);
        text("filename", one.file);
        number("line", one.line);
      });
    });
  };
  out.dict([&] {
    text("version", "2.10");
    out.text("pg_config");
    out.dict([&] {
      for (const FlightGroup& group : dump.groups) {
        out.text(group.name);
        out.dict([&] {
          text("name", group.name);
          text("desc", group.description);
          text("ranks", python_list(group.members));
        });
      }
    });
    out.text("pg_status");
    out.dict([] {});
    out.text("entries");
    out.list([&] {
      int64_t id = 0;
      for (const FlightEntry& one : dump.entries) out.dict([&] { entry(one, id++); });
    });
  });
  return out.finish();
}

namespace {

// Where a collective takes one tensor per member. A log has the size of the first one.
enum class Lists { kNone, kInputs, kOutputs, kBoth };

struct Kind {
  const char* name;  // PyTorch's
  Lists lists = Lists::kNone;
};

// By c10d::Backend's method; those that are missing have PyTorch's name.
const std::map<std::string, Kind>& kinds() {
  static const std::map<std::string, Kind> kinds = {
      {"allreduce", {"all_reduce"}},
      {"allreduce_sparse", {"all_reduce"}},
      {"allgather", {"all_gather", Lists::kOutputs}},
      {"allgather_coalesced", {"all_gather_into_tensor_coalesced", Lists::kOutputs}},
      {"_allgather_base", {"_all_gather_base"}},
      {"allgather_into_tensor_coalesced", {"all_gather_into_tensor_coalesced"}},
      {"reduce_scatter", {"reduce_scatter", Lists::kInputs}},
      {"alltoall", {"all_to_all", Lists::kBoth}},
      {"alltoall_base", {"all_to_all"}},
      {"barrier", {"all_reduce_barrier"}}};
  return kinds;
}

}  // namespace

FlightEntry to_flight_entry(const comms::Collective& collective, const comms::GroupState& group) {
  FlightEntry entry;
  const auto found = kinds().find(collective.op);
  const Kind kind = found == kinds().end() ? Kind{collective.op.c_str()} : found->second;
  entry.op = kind.name;
  entry.number = collective.number;
  entry.input_size = collective.input;
  entry.output_size = collective.output;
  const auto members = static_cast<int64_t>(group.members.size());
  switch (kind.lists) {
    case Lists::kNone:
      break;
    case Lists::kInputs:
      entry.input_size.insert(entry.input_size.begin(), members);
      break;
    case Lists::kOutputs:
      entry.output_size.insert(entry.output_size.begin(), members);
      break;
    case Lists::kBoth:  // the sum over all members must be the same for both
      entry.output_size = entry.input_size;
      break;
  }
  entry.dtype = collective.dtype;
  entry.is_done = collective.is_done;
  return entry;
}

}  // namespace pipewright::executor
