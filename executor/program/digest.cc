#include "pipewright/executor/program/digest.h"

#include <algorithm>
#include <cstdint>
#include <sstream>

#include "pipewright/schedule/verify/verify.h"

namespace pipewright::executor {
namespace {

// 64-bit FNV-1a: protects against mistakes, not against attackers.
class Hash {
 public:
  void add(uint64_t word) {
    for (int byte = 0; byte < 8; ++byte) {
      hash_ = (hash_ ^ (word >> 8 * byte & 0xff)) * 0x100000001b3u;
    }
  }
  std::string to_string() const {
    std::ostringstream text;
    text << std::hex << hash_;
    return text.str();
  }

 private:
  uint64_t hash_ = 0xcbf29ce484222325u;
};

std::string hash_of(const ir::Rows& rows) {
  Hash hash;
  for (const ir::Row& row : rows) {
    hash.add(row.size());
    for (const ir::Action& action : row) {
      hash.add(action.parts().size());
      for (const ir::ActionPart part : action.parts()) {
        hash.add(static_cast<uint64_t>(part.kind()));
        hash.add(static_cast<uint64_t>(part.stage()));
        hash.add(static_cast<uint64_t>(part.microbatch()));
      }
    }
  }
  return hash.to_string();
}

}  // namespace

std::vector<DigestPart> digest_of(const ir::Program& program, std::vector<DigestPart> options) {
  const schedule::VerifyOptions channels = schedule::options_of(program.lowering);
  std::vector<DigestPart> digest = {
      {"program", hash_of(program.rows)},
      {"placement", program.placement.to_string()},
      {"microbatches", std::to_string(program.num_microbatches)},
      {"channels",
       std::string(ir::name(channels.channels)) + " " + ir::to_string_capacity(channels.capacity)},
  };
  for (DigestPart& option : options) digest.push_back(std::move(option));
  return digest;
}

std::string to_string(const std::vector<DigestPart>& digest) {
  std::string text;
  for (const DigestPart& part : digest) text += part.name + '=' + part.value + ';';
  return text;
}

std::vector<DigestPart> parse_digest(const std::string& text) {
  std::vector<DigestPart> digest;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ';');) {
    const size_t equals = std::min(part.find('='), part.size());
    digest.push_back({part.substr(0, equals), part.substr(std::min(equals + 1, part.size()))});
  }
  return digest;
}

std::string difference(const std::vector<DigestPart>& left, int left_rank,
                       const std::vector<DigestPart>& right, int right_rank) {
  for (size_t i = 0; i < std::max(left.size(), right.size()); ++i) {
    const DigestPart one = i < left.size() ? left[i] : DigestPart{right[i].name, "missing"};
    const DigestPart other = i < right.size() ? right[i] : DigestPart{one.name, "missing"};
    if (one.value == other.value) continue;
    return one.name + " is " + one.value + " on rank " + std::to_string(left_rank) + " and " +
           other.value + " on rank " + std::to_string(right_rank);
  }
  return "";
}

}  // namespace pipewright::executor
