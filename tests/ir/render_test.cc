#include "pipewright/ir/text/render.h"

#include <gtest/gtest.h>

namespace pipewright::ir {
namespace {

std::string render_one(const Source& source, size_t offset, size_t length,
                       RenderOptions options = {}) {
  Diagnostics diagnostics;
  PlaceCursor cursor(source);
  diagnostics.error(Rule::kTrailingText, "message", cursor.at(offset, length));
  return render(diagnostics, &source, options);
}

TEST(RenderTest, CaretsAreUnderThePlace) {
  EXPECT_EQ(render_one({"a.csv", "0F0\n0F1,1F0xyz\n"}, 11, 3),
            "a.csv:2:8: error[PW006]: message\n"
            "0F1,1F0xyz\n"
            "       ^^^\n");
}

TEST(RenderTest, OneCaretAtTheEndOfTheFile) {
  EXPECT_EQ(render_one({"a.csv", "0F0"}, 3, 0),
            "a.csv:1:4: error[PW006]: message\n"
            "0F0\n"
            "   ^\n");
}

TEST(RenderTest, CarriageReturnsAndByteOrderMarksAreNotShown) {
  EXPECT_EQ(render_one({"a.csv",
                        "\xEF\xBB\xBF"
                        "0F0x\r\n"},
                       6, 1),
            "a.csv:1:4: error[PW006]: message\n"
            "0F0x\n"
            "   ^\n");
}

TEST(RenderTest, ColumnsCountCharactersNotBytes) {
  EXPECT_EQ(render_one({"a.csv", "\xC3\xA9\xC3\xA9,0F0x"}, 8, 1),
            "a.csv:1:7: error[PW006]: message\n"
            "\xC3\xA9\xC3\xA9,0F0x\n"
            "      ^\n");
}

TEST(RenderTest, TerminalControlSequencesAreEscaped) {
  EXPECT_EQ(render_one({"a.csv", "\x1B[31m,\xFF,x"}, 8, 1),
            "a.csv:1:9: error[PW006]: message\n"
            "\\x1B[31m,\\xFF,x\n"
            "              ^\n");
}

TEST(RenderTest, LongLinesAreCutAroundTheCarets) {
  std::string row;
  for (int microbatch = 0; microbatch < 100000; ++microbatch)
    row += "0F" + std::to_string(microbatch) + ",";
  const size_t at = row.find("0F50000");
  std::string text = render_one({"a.csv", row}, at, 7, {false, 40});
  text.erase(0, text.find('\n') + 1);
  const std::string line = text.substr(0, text.find('\n'));
  const std::string carets = text.substr(text.find('\n') + 1);
  EXPECT_LE(line.size(), 40u);
  EXPECT_TRUE(line.starts_with("...") && line.ends_with("...")) << line;
  EXPECT_EQ(line.substr(carets.find('^'), 7), "0F50000");
  EXPECT_EQ(carets, std::string(carets.find('^'), ' ') + "^^^^^^^\n");
}

// Only the text around the place is looked at; where it ends is shown as for a short line.
TEST(RenderTest, TheEndsOfLongLinesAreFound) {
  const std::string row(10000, 'x');
  const Source source{"a.csv", row + "\r\n" + row + "\n"};
  const auto shown = [&](size_t offset) {
    const std::string text = render_one(source, offset, 1, {false, 20});
    const size_t begin = text.find('\n') + 1;
    return text.substr(begin, text.find('\n', begin) - begin);
  };
  EXPECT_EQ(shown(0), std::string(17, 'x') + "...");
  EXPECT_EQ(shown(9999), "..." + std::string(17, 'x'));
  EXPECT_EQ(shown(10002), std::string(17, 'x') + "...");
  EXPECT_EQ(shown(10003), std::string(17, 'x') + "...");
  EXPECT_EQ(shown(20001), "..." + std::string(17, 'x'));
}

TEST(RenderTest, NotesHelpAndColor) {
  const Source source{"a.csv", "0F0\n1F0\n"};
  Diagnostics diagnostics;
  PlaceCursor cursor(source);
  Diagnostic& error = diagnostics.error(Rule::kStageOnTwoRanks, "wrong", cursor.at(4, 3));
  error.notes.push_back({"with a place", cursor.at(0, 3)});
  error.notes.push_back({"without", {}});
  error.help = "fix it";
  EXPECT_EQ(render(diagnostics, &source, {}),
            "a.csv:2:1: error[PW020]: wrong\n1F0\n^^^\n"
            "a.csv:1:1: note: with a place\n0F0\n^^^\n"
            "note: without\n"
            "help: fix it\n");
  EXPECT_NE(render(diagnostics, &source, {true, 80}).find("\x1B[1;31merror[PW020]:\x1B[0m wrong"),
            std::string::npos);
}

TEST(RenderTest, WithoutAFileRankAndStepAreShown) {
  Diagnostics diagnostics;
  Place place;
  place.rank = 1;
  place.step = 4;
  diagnostics.error(Rule::kStageOnTwoRanks, "wrong", place);
  EXPECT_EQ(render(diagnostics, nullptr, {}), "rank 1 step 4: error[PW020]: wrong\n");
}

TEST(DiagnosticsTest, TheNumberOfKeptErrorsIsLimited) {
  Diagnostics diagnostics;
  for (size_t count = 0; count < Diagnostics::kMaxKept + 5; ++count)
    diagnostics.error(Rule::kNoStage, "x").help = "y";
  EXPECT_EQ(diagnostics.kept().size(), Diagnostics::kMaxKept);
  EXPECT_EQ(diagnostics.total(), Diagnostics::kMaxKept + 5);
  EXPECT_TRUE(render(diagnostics, nullptr, {}).ends_with("... and 5 more errors, not shown\n"));
}

TEST(DiagnosticsTest, AppendedErrorsKeepTheirOrderAndCount) {
  Diagnostics first, second;
  first.error(Rule::kNoStage, "first").help = "y";
  for (size_t count = 0; count < Diagnostics::kMaxKept + 5; ++count)
    second.error(Rule::kNoPeer, "second").notes.push_back({"note", {}});
  first.append(std::move(second));
  ASSERT_EQ(first.kept().size(), Diagnostics::kMaxKept);
  EXPECT_EQ(first.total(), Diagnostics::kMaxKept + 6);
  EXPECT_EQ(first.kept()[0].message, "first");
  EXPECT_EQ(first.kept()[0].help, "y");
  EXPECT_EQ(first.kept()[1].message, "second");
  EXPECT_EQ(first.kept()[1].notes.size(), 1u);
}

// Places are looked up in ascending order, so that a row with an error in each cell is scanned
// once, wherever the notes are.
TEST(DiagnosticsTest, PlacesAreFoundInAscendingOrder) {
  Diagnostics diagnostics;
  for (size_t step = 0; step < 20; ++step) {
    Diagnostic& error = diagnostics.error(Rule::kDuplicateAction, "x", place_at(step % 2, step));
    error.notes.push_back({"y", place_at(1 - step % 2, 40 - step)});
  }
  std::pair<int, int> last(0, -1);
  diagnostics.find_places([&](int rank, int step) {
    EXPECT_LE(last, std::pair(rank, step));
    last = {rank, step};
    Place place = place_at(static_cast<size_t>(rank), static_cast<size_t>(step));
    place.offset = 7;
    return place;
  });
  for (const Diagnostic& one : diagnostics.kept()) {
    EXPECT_EQ(one.place.offset, 7u);
    EXPECT_EQ(one.notes[0].place.offset, 7u);
  }
}

TEST(DiagnosticsTest, TheNumberOfShownErrorsIsLimited) {
  Diagnostics diagnostics;
  for (const char* message : {"x", "y", "z"}) diagnostics.error(Rule::kNoStage, message);
  EXPECT_EQ(render(diagnostics, nullptr, {.max_errors = 1}),
            "error[PW001]: x\n... and 2 more errors, not shown\n");
  EXPECT_EQ(render(diagnostics, nullptr, {.max_errors = 2}),
            "error[PW001]: x\nerror[PW001]: y\n... and 1 more error, not shown\n");
  EXPECT_EQ(render(diagnostics, nullptr, {.max_errors = 3}), render(diagnostics, nullptr, {}));
}

TEST(DiagnosticsTest, BacktickedTextIsShortAndPrintable) {
  EXPECT_EQ(backticked("1F0"), "`1F0`");
  EXPECT_EQ(backticked("a\nb\x01"), "`a\\x0Ab\\x01`");
  EXPECT_EQ(backticked(std::string(50, 'x')), "`" + std::string(40, 'x') + "...`");
}

}  // namespace
}  // namespace pipewright::ir
