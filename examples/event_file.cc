#include "examples/event_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <stdexcept>

#include "pipewright/comms/process/environment.h"

namespace pipewright::examples {
namespace {

// CRC-32C (Castagnoli; RFC 3720, B.4).
uint32_t crc32c(const std::string& bytes) {
  uint32_t crc = ~0U;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78U : 0);
  }
  return ~crc;
}

// The lowest byte first, as all numbers of fixed length here.
template <class Number>
std::string fixed(Number number) {
  static_assert(std::endian::native == std::endian::little);
  const auto bytes = std::bit_cast<std::array<char, sizeof(Number)>>(number);
  return {bytes.data(), bytes.size()};
}

// A record's checksum, "masked" so that checksums of data with checksums in it stay good.
std::string checksum(const std::string& bytes) {
  const uint32_t crc = crc32c(bytes);
  return fixed(((crc >> 15) | (crc << 17)) + 0xa282ead8U);
}

// Fields of a message of Protocol Buffers: the number and kind of the field, then its value.
std::string varint(uint64_t number) {
  std::string bytes;
  for (; number >= 0x80; number >>= 7) bytes += static_cast<char>(0x80 | (number & 0x7f));
  return bytes + static_cast<char>(number);
}
std::string integer_field(int field, int64_t value) {
  return varint(field << 3) + varint(static_cast<uint64_t>(value));
}
std::string double_field(int field, double value) { return varint(field << 3 | 1) + fixed(value); }
std::string bytes_field(int field, const std::string& value) {
  return varint(field << 3 | 2) + varint(value.size()) + value;
}
std::string float_field(int field, float value) { return varint(field << 3 | 5) + fixed(value); }

// The fields of Event.
std::string event_of(double time, int64_t step) {
  // A zero is not written.
  return double_field(1, time) + (step == 0 ? "" : integer_field(2, step));
}
std::string file_version() { return bytes_field(3, "brain.Event:2"); }
std::string summary(const std::vector<Scalar>& scalars) {
  std::string values;
  for (const Scalar& scalar : scalars)
    values += bytes_field(
        1, bytes_field(1, scalar.tag) + float_field(2, static_cast<float>(scalar.value)));
  return bytes_field(5, values);
}
std::string session_start() { return bytes_field(7, integer_field(1, 1)); }

}  // namespace

EventFile::EventFile(const std::filesystem::path& folder, int64_t first_step, double time) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  // The pattern that TensorBoard looks for.
  path_ = folder / fmt::format("events.out.tfevents.{}.{}.{}.0", static_cast<int64_t>(time),
                               comms::host_name(), getpid());
  file_.open(path_, std::ios::binary);
  write_record(event_of(time, 0) + file_version());
  write_record(event_of(time, first_step) + session_start());
}

void EventFile::write(int64_t step, double time, const std::vector<Scalar>& scalars) {
  write_record(event_of(time, step) + summary(scalars));
}

void EventFile::write_record(const std::string& event) {
  const std::string length = fixed(static_cast<uint64_t>(event.size()));
  file_ << length << checksum(length) << event << checksum(event) << std::flush;
  if (!file_) throw std::runtime_error("cannot write `" + path_.native() + "`");
}

}  // namespace pipewright::examples
