// The safetensors format: what is refused and where, round trips, and a file that Python wrote.
#include "pipewright/checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <random>

#include "pipewright/checkpoint/durable_file.h"
#include "pipewright/checkpoint/safetensors_file.h"
#include "tests/checkpoint/scratch.h"

namespace pipewright::checkpoint {
namespace {

using tests::read_file;
using tests::scratch_folder;

std::string with_size(uint64_t size, const std::string& rest) {
  std::string file;
  for (int shift = 0; shift < 64; shift += 8) file += static_cast<char>(size >> shift & 0xFF);
  return file + rest;
}

std::string file_of(const std::string& json, size_t data) {
  return with_size(json.size(), json + std::string(data, 'x'));
}

// "PW102 5 `[0, 4]`": the rules and the marked text of all errors.
std::vector<std::string> errors_of(const std::string& file) {
  ir::Diagnostics diagnostics;
  const ParsedSafetensors parsed = parse_safetensors("x.safetensors", file, &diagnostics);
  EXPECT_NE(parsed.header.has_value(), diagnostics.has_errors());
  std::vector<std::string> errors;
  for (const ir::Diagnostic& error : diagnostics.kept()) {
    errors.push_back(ir::code(error.rule));
    if (error.place.offset)
      errors.back() += " " + parsed.text.text.substr(*error.place.offset, error.place.length);
  }
  return errors;
}

using Errors = std::vector<std::string>;

TEST(SafetensorsTest, TheStartOfAFileIsChecked) {
  EXPECT_EQ(errors_of(""), Errors{"PW100"});
  EXPECT_EQ(errors_of("1234567"), Errors{"PW100"});
  EXPECT_EQ(errors_of(with_size(3, "{}")), Errors{"PW100"});
  EXPECT_EQ(errors_of(with_size(0, "")), Errors{"PW100"});
  EXPECT_EQ(errors_of(with_size(UINT64_MAX, "{}")), Errors{"PW100"});
  EXPECT_EQ(errors_of(with_size(3, " {}")), Errors{"PW100"});
  EXPECT_EQ(errors_of(with_size(5, "\xEF\xBB\xBF{}")), Errors{"PW100"});
  EXPECT_EQ(errors_of(with_size(2, "[]")), Errors{"PW100"});
  // The limit is checked before anything of that size is looked at.
  for (const auto& [size, message] :
       {std::pair(100'000'000, "truncated"), {100'000'001, "at most"}}) {
    ir::Diagnostics diagnostics;
    parse_safetensors("x", with_size(static_cast<uint64_t>(size), "{}"), &diagnostics);
    EXPECT_NE(diagnostics.kept()[0].message.find(message), std::string::npos);
  }
}

TEST(SafetensorsTest, EveryErrorIsReportedWhereItIs) {
  const auto entry = [](const std::string& text) { return "{\"a\":{" + text + "}}"; };
  const std::string dtype = "\"dtype\":\"U8\"", shape = "\"shape\":[2]",
                    offsets = "\"data_offsets\":[0,2]";
  const auto all = [&](const std::string& a, const std::string& b, const std::string& c) {
    return entry(a + "," + b + "," + c);
  };
  ASSERT_EQ(errors_of(file_of(all(dtype, shape, offsets), 2)), Errors{});
  ASSERT_EQ(errors_of(file_of(all(dtype, shape, offsets) + "   ", 2)), Errors{});
  ASSERT_EQ(errors_of(file_of("{}", 0)), Errors{});

  const struct {
    std::string json;
    size_t data;
    Errors errors;
  } kCases[] = {
      // JSON
      {"{\"a\":", 0, {"PW090 "}},
      {"{} x", 0, {"PW090 x"}},
      {"{\"\xFF\":{}}", 0, {"PW090 \xFF"}},
      {"{}\n", 0, {"PW100 \n"}},
      // the root and the metadata
      {"{\"a\":1}", 0, {"PW101 1"}},
      {"{\"a\":[1]}", 0, {"PW101 ["}},
      {"{\"a\":null}", 0, {"PW101 null"}},
      {"{\"__metadata__\":\"x\"}", 0, {"PW101 \"x\""}},
      {"{\"__metadata__\":{\"k\":1}}", 0, {"PW101 1"}},
      {"{\"__metadata__\":{\"k\":{\"l\":\"m\"}}}", 0, {"PW101 {"}},
      {"{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, {"PW101 \"k\""}},
      {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, {"PW101 \"__metadata__\""}},
      // keys of a tensor
      {entry(""), 0, {"PW101 \"a\""}},
      {entry(dtype + "," + shape), 2, {"PW101 \"a\""}},
      {entry(dtype + "," + shape + "," + offsets + ",\"strides\":[1]"), 2, {"PW101 \"strides\""}},
      {entry(dtype + "," + dtype + "," + shape + "," + offsets), 2, {"PW101 \"dtype\""}},
      {"{\"a\":{" + dtype + "," + shape + "," + offsets + "},\"\\u0061\":{" + dtype + "," + shape +
           ",\"data_offsets\":[2,4]}}",
       4,
       {"PW101 \"\\u0061\""}},
      // their values
      {all("\"dtype\":\"F31\"", shape, offsets), 2, {"PW101 \"F31\""}},
      {all("\"dtype\":\"u8\"", shape, offsets), 2, {"PW101 \"u8\""}},
      {all("\"dtype\":8", shape, offsets), 2, {"PW101 8"}},
      {all(dtype, "\"shape\":2", offsets), 2, {"PW101 2"}},
      {all(dtype, "\"shape\":[-2]", offsets), 2, {"PW101 -2"}},
      {all(dtype, "\"shape\":[-0]", offsets), 2, {"PW101 -0"}},
      {all(dtype, "\"shape\":[2.0]", offsets), 2, {"PW101 2.0"}},
      {all(dtype, "\"shape\":[2e0]", offsets), 2, {"PW101 2e0"}},
      {all(dtype, "\"shape\":[\"2\"]", offsets), 2, {"PW101 \"2\""}},
      {all(dtype, "\"shape\":[[2]]", offsets), 2, {"PW101 ["}},
      {all(dtype, "\"shape\":[9223372036854775808]", offsets), 2, {"PW101 9223372036854775808"}},
      {all(dtype, "\"shape\":[18446744073709551616]", offsets), 2, {"PW101 18446744073709551616"}},
      {all(dtype, shape, "\"data_offsets\":[0]"), 2, {"PW101 [0]"}},
      {all(dtype, shape, "\"data_offsets\":[0,2,4]"), 2, {"PW101 [0,2,4]"}},
      {all(dtype, shape, "\"data_offsets\":[2,0]"), 2, {"PW101 [2,0]"}},
      {all(dtype, shape, "\"data_offsets\":{\"0\":2}"), 2, {"PW101 {"}},
      // sizes
      {all(dtype, shape, "\"data_offsets\":[0,3]"), 3, {"PW102 [0,3]"}},
      {all("\"dtype\":\"F32\"", shape, offsets), 2, {"PW102 [0,2]"}},
      {all(dtype, "\"shape\":[4294967296,4294967296]", offsets), 2, {"PW102 [0,2]"}},
      {all(dtype, "\"shape\":[4294967296,4294967296,0]", offsets), 2, {"PW102 [0,2]"}},
      {all("\"dtype\":\"F4\"", "\"shape\":[3]", offsets), 2, {"PW102 [0,2]"}},
      {all("\"dtype\":\"F6_E2M3\"", "\"shape\":[2]", offsets), 2, {"PW102 [0,2]"}},
      // tiling
      {all(dtype, shape, "\"data_offsets\":[1,3]"), 3, {"PW103 [1,3]"}},
      {all(dtype, shape, offsets), 1, {"PW103 [0,2]"}},
      {all(dtype, shape, offsets), 3, {"PW103 [0,2]"}},
      {"{}", 1, {"PW103"}},
      // all at once
      {"{\"a\":{\"dtype\":\"X\"," + shape + "," + offsets + "},\"b\":{" + dtype +
           ",\"shape\":[3],\"data_offsets\":[2,4]}}",
       4,
       {"PW101 \"X\"", "PW102 [2,4]"}},
  };
  for (const auto& one : kCases)
    EXPECT_EQ(errors_of(file_of(one.json, one.data)), one.errors) << one.json;
}

TEST(SafetensorsTest, TensorsTileTheDataInAnyOrder) {
  const auto json = [](const std::string& a, const std::string& b, const std::string& c) {
    const auto entry = [](const std::string& name, const std::string& size_and_offsets) {
      return "\"" + name + "\":{\"dtype\":\"U8\",\"shape\":[" + size_and_offsets + "]}";
    };
    return "{" + entry("a", a) + "," + entry("b", b) + "," + entry("c", c) + "}";
  };
  EXPECT_EQ(errors_of(file_of(json("2],\"data_offsets\":[4,6", "1],\"data_offsets\":[0,1",
                                   "3],\"data_offsets\":[1,4"),
                              6)),
            Errors{});
  // Empty tensors have room anywhere between others, but not within one.
  EXPECT_EQ(errors_of(file_of(json("2],\"data_offsets\":[0,2", "0],\"data_offsets\":[2,2",
                                   "2],\"data_offsets\":[2,4"),
                              4)),
            Errors{});
  EXPECT_EQ(errors_of(file_of(json("2],\"data_offsets\":[0,2", "0],\"data_offsets\":[1,1",
                                   "2],\"data_offsets\":[2,4"),
                              4)),
            Errors{"PW103 [1,1]"});
  EXPECT_EQ(errors_of(file_of(json("2],\"data_offsets\":[0,2", "2],\"data_offsets\":[1,3",
                                   "2],\"data_offsets\":[4,6"),
                              6)),
            (Errors{"PW103 [1,3]", "PW103 [4,6]"}));
}

TEST(SafetensorsTest, WhatIsLaidOutIsReadBack) {
  std::mt19937 random(1);
  const auto below = [&](int limit) {
    return static_cast<int>(random() % static_cast<unsigned>(limit));
  };
  for (int run = 0; run < 200; ++run) {
    std::vector<TensorSpec> tensors;
    for (int count = below(8), index = 0; index < count; ++index) {
      TensorSpec& tensor = tensors.emplace_back();
      tensor.name = "layer \"" + std::to_string(index) + "\" \xC3\xA9\n";
      tensor.dtype = static_cast<DType>(below(static_cast<int>(dtype_names().size())));
      for (int dims = below(4), dim = 0; dim < dims; ++dim) tensor.shape.push_back(below(4));
      if (bits(tensor.dtype) % 8 != 0) tensor.shape.push_back(4);  // whole bytes
    }
    Metadata metadata;
    if (run % 2 == 0) metadata = {{"format", "pt"}, {"\\", "\""}};
    const SafetensorsHeader header = lay_out_safetensors(tensors, metadata);
    EXPECT_EQ(header.data_begin % 8, 0u);
    for (const StoredTensor& tensor : header.tensors) {
      const uint64_t alignment = std::max(bits(tensor.dtype), 8) / 8;
      EXPECT_EQ(tensor.begin % alignment, 0u);
    }
    const std::string file =
        safetensors_header_bytes(header) + std::string(header.data_size(), 'x');
    ir::Diagnostics diagnostics;
    const ParsedSafetensors parsed = parse_safetensors("x", file, &diagnostics);
    ASSERT_TRUE(parsed.header) << file;
    EXPECT_EQ(parsed.header->metadata, header.metadata);
    EXPECT_EQ(parsed.header->data_begin, header.data_begin);
    // Empty tensors at one offset have no order.
    const auto sorted = [](std::vector<StoredTensor> list) {
      std::ranges::sort(list, {}, &StoredTensor::name);
      return list;
    };
    EXPECT_EQ(sorted(parsed.header->tensors), sorted(header.tensors));
  }
}

TEST(SafetensorsTest, WhatCannotBeWrittenIsRefused) {
  const auto lay_out = [](std::vector<TensorSpec> tensors, Metadata metadata = {}) {
    lay_out_safetensors(std::move(tensors), std::move(metadata));
  };
  EXPECT_THROW(lay_out({{"a", DType::kU8, {}}, {"a", DType::kF32, {}}}), std::invalid_argument);
  EXPECT_THROW(lay_out({{"__metadata__", DType::kU8, {}}}), std::invalid_argument);
  EXPECT_THROW(lay_out({{"\xFF", DType::kU8, {}}}), std::invalid_argument);
  EXPECT_THROW(lay_out({{"a", DType::kU8, {}}}, {{"k", "\xFF"}}), std::invalid_argument);
  EXPECT_THROW(lay_out({{"a", DType::kF4, {3}}}), std::invalid_argument);
  EXPECT_THROW(lay_out({{"a", DType::kU8, {-1}}}), std::invalid_argument);
  EXPECT_THROW(lay_out({{"a", DType::kF64, {INT64_MAX}}}), std::invalid_argument);
  EXPECT_THROW(lay_out({}, {{"k", std::string(100'000'000, 'x')}}), std::invalid_argument);
}

template <typename T>
T value(const SafetensorsFile& file, const StoredTensor& tensor, size_t index) {
  T result;
  std::memcpy(&result, file.data(tensor).data() + index * sizeof(T), sizeof(T));
  return result;
}

// tests/checkpoint/files/README.md says how it was made.
TEST(SafetensorsFileTest, PythonsFileIsRead) {
  ir::Diagnostics diagnostics;
  ir::Source text;
  const auto file =
      SafetensorsFile::open("tests/checkpoint/files/python.safetensors", &diagnostics, &text);
  ASSERT_TRUE(file);
  EXPECT_EQ(file->header().metadata,
            (Metadata{{"format", "np"}, {"note", "written by safetensors 0.8.0"}}));
  std::map<std::string, StoredTensor> tensors;
  for (const StoredTensor& tensor : file->header().tensors) tensors.emplace(tensor.name, tensor);
  ASSERT_EQ(tensors.size(), 5u);
  const auto expect = [&](const char* name, DType dtype, const std::vector<int64_t>& shape) {
    EXPECT_EQ(tensors.at(name).dtype, dtype) << name;
    EXPECT_EQ(tensors.at(name).shape, shape) << name;
  };
  expect("b", DType::kBool, {3});
  expect("h", DType::kF16, {2, 3});
  expect("scalar", DType::kF64, {});
  expect("empty", DType::kI32, {0, 4});
  expect("na\xC3\xAFve \"name\"", DType::kI64, {2, 2});
  EXPECT_EQ(value<double>(*file, tensors.at("scalar"), 0), 2.5);
  EXPECT_EQ(value<int64_t>(*file, tensors.at("na\xC3\xAFve \"name\""), 3), -4);
  EXPECT_EQ(value<uint16_t>(*file, tensors.at("h"), 5), 0x4500);  // 5.0 as a half
  EXPECT_EQ(value<bool>(*file, tensors.at("b"), 1), false);
}

// Widest type first: for these tensors, Python's writer chose the same offsets.
TEST(SafetensorsFileTest, TheLayoutIsThatOfPythonsFile) {
  ir::Diagnostics diagnostics;
  ir::Source text;
  const auto file =
      SafetensorsFile::open("tests/checkpoint/files/python.safetensors", &diagnostics, &text);
  ASSERT_TRUE(file);
  const auto& tensors = file->header().tensors;
  const SafetensorsHeader ours = lay_out_safetensors({tensors.rbegin(), tensors.rend()}, {});
  EXPECT_EQ(ours.tensors, tensors);
}

TEST(SafetensorsFileTest, WrittenFilesAreReadBack) {
  const auto path = scratch_folder("written") / "x.safetensors";
  SafetensorsWriter writer(path, lay_out_safetensors({{"big", DType::kU8, {3'000'000}},
                                                      {"small", DType::kF32, {2}},
                                                      {"none", DType::kF32, {0}}},
                                                     {{"format", "pt"}}));
  std::vector<std::byte> big(3'000'000);
  for (size_t index = 0; index < big.size(); ++index) big[index] = std::byte(index * 7 % 251);
  const float small[] = {1.5F, -2.0F};
  writer.write(std::as_bytes(std::span(small)));
  // In pieces below and above the size of the buffer.
  writer.write(std::span(big).first(10));
  writer.write(std::span(big).subspan(10, 2'000'000));
  writer.write(std::span(big).subspan(2'000'010));
  writer.commit();

  const std::string bytes = read_file(path);
  EXPECT_EQ(writer.size(), bytes.size());
  EXPECT_EQ(writer.crc32(), crc32(std::as_bytes(std::span(bytes))));
  ir::Diagnostics diagnostics;
  ir::Source text;
  const auto file = SafetensorsFile::open(path, &diagnostics, &text);
  ASSERT_TRUE(file);
  for (const StoredTensor& tensor : file->header().tensors) {
    if (tensor.name == "big") {
      EXPECT_TRUE(std::ranges::equal(file->data(tensor), big));
    }
    if (tensor.name == "small") {
      EXPECT_EQ(value<float>(*file, tensor, 1), -2.0F);
    }
  }
}

TEST(SafetensorsFileTest, WithoutCommitNothingIsLeftBehind) {
  const auto folder = scratch_folder("uncommitted");
  const auto path = folder / "x.safetensors";
  {
    SafetensorsWriter writer(path, lay_out_safetensors({{"a", DType::kU8, {4}}}, {}));
    const char data[] = {1, 2, 3};
    writer.write(std::as_bytes(std::span(data)));
    EXPECT_THROW(writer.commit(), std::invalid_argument);  // one byte is missing
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

TEST(Crc32Test, ItIsZlibs) {
  const std::string_view check = "123456789";  // the check value of the CRC-32 catalogue
  EXPECT_EQ(crc32_text(crc32(std::as_bytes(std::span(check)))), "cbf43926");
  const auto bytes = std::as_bytes(std::span(check));
  const uint32_t part = crc32(bytes.first(4));
  EXPECT_EQ(crc32({}, part), part);
  EXPECT_EQ(crc32(bytes.subspan(4), part), crc32(bytes));
  EXPECT_EQ(parse_crc32("cbf43926"), 0xcbf43926);
  for (const char* bad : {"", "cbf4392", "CBF43926", "0cbf43926", "cbf4392g", "-bf43926"})
    EXPECT_FALSE(parse_crc32(bad)) << bad;
}

}  // namespace
}  // namespace pipewright::checkpoint
