#include "pipewright/ir/text/action_text.h"

#include <gtest/gtest.h>

namespace pipewright::ir {
namespace {

Action parse(std::string_view text) {
  Action action;
  const auto error = parse_action(text, &action);
  EXPECT_FALSE(error) << text << ": " << error->message;
  return action;
}

// The actions of PyTorch's test_action_parse, and one of every other kind.
TEST(ActionTextTest, RoundTripsEveryKind) {
  for (const char* text : {"1F0", "2I1", "0W3", "0B3", "1UNSHARD", "3RESHARD", "0REDUCE_GRAD",
                           "2SEND_B2", "1RECV_F1", "5SEND_F7", "4RECV_B0", "(0F3;7B1)OVERLAP_F_B",
                           "(3I1;0F4)OVERLAP_F_B", "1048575F268435455"}) {
    EXPECT_EQ(to_string(parse(text)), text);
  }
}

TEST(ActionTextTest, ReadsTheParts) {
  const Action send = parse("2SEND_F5");
  EXPECT_EQ(send, Action(ActionKind::kSendF, 2, 5));
  EXPECT_EQ(send.kind(), ActionKind::kSendF);
  ASSERT_EQ(send.parts().size(), 1u);
  EXPECT_EQ(send.parts()[0].stage(), 2);
  EXPECT_EQ(send.parts()[0].microbatch(), 5);

  const Action compound = parse("(0F3;7B1)OVERLAP_F_B");
  EXPECT_EQ(compound.kind(), ActionKind::kOverlapFB);
  ASSERT_EQ(compound.parts().size(), 2u);
  EXPECT_EQ(compound.parts()[0], ActionPart(ActionKind::kForward, 0, 3));
  EXPECT_EQ(compound.parts()[1], ActionPart(ActionKind::kBackward, 7, 1));
}

TEST(ActionTextTest, IgnoresBlanksAroundAnActionAndReadsBlanksAsIdle) {
  EXPECT_TRUE(parse("").is_idle());
  EXPECT_TRUE(parse("  \t").is_idle());
  EXPECT_EQ(to_string(parse(" 1F0\t")), "1F0");
  EXPECT_EQ(to_string(parse(" ( 0F3 ; 7B1 )OVERLAP_F_B ")), "(0F3;7B1)OVERLAP_F_B");
  EXPECT_EQ(to_string(Action()), "");
}

TEST(ActionTextTest, ErrorsNameTheRuleAndTheWrongBytes) {
  struct Case {
    const char* text;
    Rule rule;
    const char* part;  // the wrong bytes of the text
  };
  // PyTorch's parser accepts the first ten silently or rejects them without a place.
  const Case cases[] = {
      {"1F0xyz", Rule::kTrailingText, "xyz"},
      {"0BW0", Rule::kLegacyToken, "BW"},
      {"0F", Rule::kMissingMicrobatch, "0F"},
      {"1UNSHARD3", Rule::kUnexpectedMicrobatch, "3"},
      {"00F1", Rule::kLeadingZero, "00"},
      {"0F01", Rule::kLeadingZero, "01"},
      {"()OVERLAP_F_B", Rule::kCompoundWithoutParts, "()OVERLAP_F_B"},
      {"(0F0;1B1)F", Rule::kCompoundSuffix, "F"},
      {"(0F0;1B1)", Rule::kCompoundSuffix, "(0F0;1B1)"},
      {"(0F0;1B1) OVERLAP_F_B", Rule::kCompoundSuffix, " OVERLAP_F_B"},
      {"F0", Rule::kNoStage, "F0"},
      {"-1F0", Rule::kNoStage, "-1F0"},
      {"\"0F0\"", Rule::kNoStage, "\"0F0\""},
      {"\xC3\xA9", Rule::kNoStage, "\xC3\xA9"},
      {"0", Rule::kUnknownToken, "0"},
      {"0X1", Rule::kUnknownToken, "X"},
      {"0f1", Rule::kUnknownToken, "f"},
      {"0SENDF1", Rule::kUnknownToken, "SENDF"},
      {"0Fx", Rule::kUnknownToken, "Fx"},
      {"0 F0", Rule::kUnknownToken, "0 F0"},
      {"1F0 1F1", Rule::kTrailingText, "1F1"},
      {"0F0;", Rule::kTrailingText, ";"},
      {"0F0)", Rule::kTrailingText, ")"},
      {"1048576F0", Rule::kStageTooLarge, "1048576"},
      {"99999999999999999999F0", Rule::kStageTooLarge, "99999999999999999999"},
      {"0F268435456", Rule::kMicrobatchTooLarge, "268435456"},
      {"0OVERLAP_F_B0", Rule::kCompoundWithoutParts, "0OVERLAP_F_B0"},
      {"-1OVERLAP_F_B", Rule::kCompoundWithoutParts, "-1OVERLAP_F_B"},
      {"(0F0;1B1OVERLAP_F_B", Rule::kCompoundNotClosed, "(0F0;1B1OVERLAP_F_B"},
      {"(0F0)OVERLAP_F_B", Rule::kCompoundArity, "(0F0)OVERLAP_F_B"},
      {"(0F0;1B1;2F2)OVERLAP_F_B", Rule::kCompoundArity, "(0F0;1B1;2F2)OVERLAP_F_B"},
      {"(0F0;)OVERLAP_F_B", Rule::kCompoundArity, "(0F0;)OVERLAP_F_B"},
      {"(0F0;1X1)OVERLAP_F_B", Rule::kUnknownToken, "X"},
      {"(0F0;1F1)OVERLAP_F_B", Rule::kCompoundParts, "(0F0;1F1)OVERLAP_F_B"},
      {"(0F0;1W1)OVERLAP_F_B", Rule::kCompoundParts, "(0F0;1W1)OVERLAP_F_B"},
      {"(0SEND_F0;1B1)OVERLAP_F_B", Rule::kCompoundParts, "(0SEND_F0;1B1)OVERLAP_F_B"},
      {"((0F0;1B1)OVERLAP_F_B;0F2)OVERLAP_F_B", Rule::kCompoundParts,
       "((0F0;1B1)OVERLAP_F_B;0F2)OVERLAP_F_B"},
      {"(0F0;1B0)OVERLAP_F_B", Rule::kCompoundSameMicrobatch, "(0F0;1B0)OVERLAP_F_B"},
  };
  for (const Case& one : cases) {
    Action action(ActionKind::kForward, 7, 7);
    const auto error = parse_action(one.text, &action);
    ASSERT_TRUE(error) << one.text;
    EXPECT_EQ(code(error->rule), code(one.rule)) << one.text << ": " << error->message;
    EXPECT_EQ(std::string_view(one.text).substr(error->offset, error->length), one.part)
        << one.text;
    EXPECT_EQ(action, Action(ActionKind::kForward, 7, 7)) << one.text << " changed the action";
  }
}

ActionTextError error_of(const std::string& text) {
  Action action;
  const auto error = parse_action(text, &action);
  EXPECT_TRUE(error) << text;
  return error.value_or(ActionTextError());
}

// A help never leads to the next error.
TEST(ActionTextTest, HelpsThatAreFollowedAreValid) {
  const std::pair<const char*, const char*> kCases[] = {
      {"0SENDF3", "did you mean `0SEND_F3`?"},
      {"0SENDF", "did you mean `0SEND_F0`?"},
      {"0UNSHARDX3", "did you mean `0UNSHARD`?"},
      {"0f", "did you mean `0F0`?"},
      {"0BW",
       "write `0B0`; in files from before PyTorch 2.6 a lone `B` means `I`, so replace those "
       "first"},
      {"0SENDF03",
       "the tokens are F, B, I, W, UNSHARD, RESHARD, REDUCE_GRAD, SEND_F, RECV_F, "
       "SEND_B, RECV_B, WAIT_SEND_F, WAIT_SEND_B, WAIT_REDUCE_GRAD"},
      // The suffix is wrong, and only a compound can have another one.
      {"(0F3;3B1)F", "write `(0F3;3B1)OVERLAP_F_B`"},
      {"( 0F3 ; 3B1 )F", "write `( 0F3 ; 3B1 )OVERLAP_F_B`"},
      {"(0SEND_F0;0RECV_B0)BATCH_P2P", "write the parts as separate actions"},
      {"(0F3;0F4)F", "write the parts as separate actions"},
      {"(0F3;0B3)F", "write the parts as separate actions"},
      {"(0F3;3B1;0F4)F", ""},
      {"(0X3;3B1)F", ""},
      {"(0F3)F", ""},
      {"(0F3;3B1OVERLAP_F_B", "write `(0F3;3B1)OVERLAP_F_B`"},
      {"(0F3;3B1", "write `(0F3;3B1)OVERLAP_F_B`"},
      {"(0SEND_F0;0RECV_B0", "write the parts as separate actions"},
  };
  for (const auto& [text, help] : kCases) {
    EXPECT_EQ(error_of(text).help, help) << text;
  }
  // Whatever is suggested in place of a wrong token, with any numbers around it.
  int suggestions = 0;
  for (const std::string token : {"F", "B", "I", "W", "SEND_F", "RECV_B", "UNSHARD", "REDUCE_GRAD",
                                  "WAIT_SEND_F", "WAIT_REDUCE_GRAD", "BW"}) {
    for (size_t at = 0; at <= token.size(); ++at) {
      for (const std::string& wrong :
           {std::string(token).insert(at, "X"), std::string(token).replace(at, 1, "x"),
            std::string(token).erase(std::min(at, token.size() - 1), 1)}) {
        for (const char* microbatch : {"", "3", "03", "268435456"}) {
          const std::string text = "7" + wrong + microbatch;
          Action action;
          const auto error = parse_action(text, &action);
          if (!error || !error->help.starts_with("did you mean `")) continue;
          const std::string meant = error->help.substr(14, error->help.find('`', 14) - 14);
          EXPECT_FALSE(parse_action(meant, &action)) << text << ": " << error->help;
          ++suggestions;
        }
      }
    }
  }
  EXPECT_GT(suggestions, 100);
}

TEST(ActionTextTest, Waits) {
  const std::pair<const char*, ActionPart> kCases[] = {
      {"0WAIT_SEND_F3", {ActionKind::kWaitSendF, 0, 3}},
      {"7WAIT_SEND_B12", {ActionKind::kWaitSendB, 7, 12}},
      {"2WAIT_REDUCE_GRAD", {ActionKind::kWaitReduceGrad, 2}},
  };
  for (const auto& [text, part] : kCases) {
    Action action;
    ASSERT_FALSE(parse_action(text, &action)) << text;
    EXPECT_EQ(action, Action(part)) << text;
    EXPECT_EQ(to_string(action), text);
    EXPECT_EQ(wait_for(awaited_by(part)), part) << text;
  }
  EXPECT_EQ(error_of("0WAIT_SENDF3").help, "did you mean `0WAIT_SEND_F3`?");
  EXPECT_EQ(error_of("0WAIT_REDUCE_GRAD1").help, "write `0WAIT_REDUCE_GRAD`");
}

}  // namespace
}  // namespace pipewright::ir
