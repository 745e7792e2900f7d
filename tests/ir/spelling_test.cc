#include "pipewright/ir/text/spelling.h"

#include <gtest/gtest.h>

#include <vector>

namespace pipewright::ir {
namespace {

TEST(SpellingTest, FindsTheNearestWord) {
  const std::vector<std::string_view> known = {"print", "validate", "explain", "simulate"};
  EXPECT_EQ(nearest("prnt", known), "print");
  EXPECT_EQ(nearest("PRINT", known), "print");
  EXPECT_EQ(nearest("pritn", known), "print");  // swapped neighbours
  EXPECT_EQ(nearest("validat", known), "validate");
  EXPECT_EQ(nearest("simulat", known), "simulate");
}

TEST(SpellingTest, FindsNothingTooFarAway) {
  const std::vector<std::string_view> known = {"print", "validate"};
  EXPECT_EQ(nearest("x", known), "");
  EXPECT_EQ(nearest("", known), "");
  EXPECT_EQ(nearest("pxyzt", known), "");
  EXPECT_EQ(nearest(std::string(1000, 'p'), known), "");
}

TEST(SpellingTest, ANumberIsNotMisspelled) {
  const std::vector<std::string_view> known = {"2.11", "2.15", "1F1B"};
  EXPECT_EQ(nearest("2.16", known), "");
  EXPECT_EQ(nearest("1F1C", known), "1F1B");
}

TEST(SpellingTest, AsAQuestion) {
  const std::vector<std::string_view> known = {"print"};
  EXPECT_EQ(did_you_mean("prin", known), "did you mean `print`?");
  EXPECT_EQ(did_you_mean("zebra", known), "");
}

}  // namespace
}  // namespace pipewright::ir
