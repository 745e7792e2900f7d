// Which characters of a user's text are shown as they are. The classes are those of Unicode:
// control characters (Cc), line and paragraph separators (Zl, Zp), Bidi_Control and
// Noncharacter_Code_Point.
#include "pipewright/ir/printable.h"

#include <gtest/gtest.h>

namespace pipewright::ir {
namespace {

std::string utf8(char32_t code) {
  const auto byte = [](char32_t value) { return static_cast<char>(static_cast<uint8_t>(value)); };
  if (code < 0x80) return {byte(code)};
  if (code < 0x800) return {byte(0xC0 | code >> 6), byte(0x80 | (code & 0x3F))};
  if (code < 0x10000)
    return {byte(0xE0 | code >> 12), byte(0x80 | (code >> 6 & 0x3F)), byte(0x80 | (code & 0x3F))};
  return {byte(0xF0 | code >> 18), byte(0x80 | (code >> 12 & 0x3F)),
          byte(0x80 | (code >> 6 & 0x3F)), byte(0x80 | (code & 0x3F))};
}

TEST(PrintableTest, OrdinaryTextStays) {
  for (const char32_t code : {U'a', U' ', U'~', U'\u00A0', U'\u00E4', U'\u05D0', U'\u200D',
                              U'\u2027', U'\u4E2D', U'\uFFFD', U'\U0001F600', U'\U0010FFFD'})
    EXPECT_EQ(printable(utf8(code)), utf8(code));
}

TEST(PrintableTest, WhatHidesOrReordersTextIsEscaped) {
  EXPECT_EQ(printable("a\x1B[31m\n"), "a\\x1B[31m\\x0A");
  EXPECT_EQ(printable("a\u202Eb"), "a\\xE2\\x80\\xAEb");
  for (const char32_t code :
       {0x00,    0x1F,    0x7F,     0x80,    0x9F,                            // Cc
        0x2028,  0x2029,                                                      // Zl, Zp
        0x061C,  0x200E,  0x200F,   0x202A,  0x202B, 0x202C, 0x202D, 0x202E,  // Bidi_Control
        0x2066,  0x2067,  0x2068,   0x2069,  0xFDD0, 0xFDEF, 0xFFFE, 0xFFFF,
        0x1FFFE, 0x1FFFF, 0x10FFFE, 0x10FFFF}) {  // noncharacters
    const std::string shown = printable(utf8(static_cast<char32_t>(code)));
    EXPECT_TRUE(shown.starts_with("\\x")) << std::hex << static_cast<uint32_t>(code);
    EXPECT_EQ(shown.size(), 4 * utf8(static_cast<char32_t>(code)).size())
        << std::hex << static_cast<uint32_t>(code);
  }
}

TEST(PrintableTest, BytesThatAreNotUtf8AreEscaped) {
  EXPECT_EQ(printable("\xFF\xC0\xAF"), "\\xFF\\xC0\\xAF");
  EXPECT_EQ(printable("\xED\xA0\x80"), "\\xED\\xA0\\x80");  // a surrogate
  EXPECT_EQ(printable("\xE2\x80"), "\\xE2\\x80");           // cut off
}

}  // namespace
}  // namespace pipewright::ir
