// Follows the help of each error of the invalid files in this folder, and sees the error go. Helps
// are sentences for people; those that say what to edit have few forms, which `follow` understands.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/ir/text/action_text.h"
#include "pipewright/schedule/compile/compile.h"

namespace pipewright::schedule {
namespace {

// The text of a schedule file as lines of cells. A CSV has commas between cells; in a .plan, the
// label of a row is its first two cells.
class Sheet {
 public:
  explicit Sheet(const ir::Source& source) : name_(source.name) {
    separator_ = name_.ends_with(".csv") ? ',' : ' ';
    std::stringstream text(source.text);
    for (std::string line; std::getline(text, line);) {
      std::vector<std::string>& cells = lines_.emplace_back();
      cells.emplace_back();
      for (const char letter : line) {
        if (letter == separator_) {
          cells.emplace_back();
        } else {
          cells.back() += letter;
        }
      }
    }
  }

  ir::Source source() const {
    ir::Source made{name_, ""};
    for (const auto& cells : lines_) {
      for (size_t index = 0; index < cells.size(); ++index)
        made.text += (index == 0 ? "" : std::string(1, separator_)) + cells[index];
      made.text += "\n";
    }
    return made;
  }

  std::vector<std::string>& row(int rank) {
    for (auto& cells : lines_) {
      if (separator_ == ' ' && cells.size() >= 2 && cells[0] == "rank" &&
          cells[1] == std::to_string(rank) + ":")
        return cells;
    }
    return lines_[static_cast<size_t>(rank)];
  }
  // The line of a header key.
  std::vector<std::string>& key(const std::string& name) {
    return *std::ranges::find_if(
        lines_, [&](const auto& cells) { return !cells.empty() && cells[0] == name + ":"; });
  }
  // Where a place is.
  std::pair<std::vector<std::string>*, size_t> at(const ir::Place& place) {
    std::vector<std::string>& cells = lines_[place.line - 1];
    size_t column = 1, index = 0;
    while (index + 1 < cells.size() && column + cells[index].size() < place.column)
      column += cells[index++].size() + 1;
    return {&cells, index};
  }
  // The row with this cell, and the cell's index in it.
  std::pair<std::vector<std::string>*, size_t> find(const std::string& cell) {
    for (auto& cells : lines_) {
      const auto found = std::ranges::find(cells, cell);
      if (found != cells.end()) return {&cells, static_cast<size_t>(found - cells.begin())};
    }
    ADD_FAILURE() << "no cell " << cell;
    return {&lines_[0], 0};
  }
  void remove(std::pair<std::vector<std::string>*, size_t> where) {
    where.first->erase(where.first->begin() + static_cast<std::ptrdiff_t>(where.second));
  }
  void insert(std::pair<std::vector<std::string>*, size_t> where, const std::string& cell) {
    where.first->insert(where.first->begin() + static_cast<std::ptrdiff_t>(where.second), cell);
  }
  void remove_line(const ir::Place& place) {
    lines_.erase(lines_.begin() + static_cast<std::ptrdiff_t>(place.line - 1));
  }

 private:
  std::string name_;
  char separator_;
  std::vector<std::vector<std::string>> lines_;
};

// The other end of a SEND or RECV, as text.
std::string other_end(const std::string& cell) {
  std::smatch match;
  const std::regex transfer("([0-9]+)(SEND|RECV)_([FB])([0-9]+)");
  EXPECT_TRUE(std::regex_match(cell, match, transfer)) << cell;
  const bool up = (match[2] == "SEND") == (match[3] == "F");
  return std::to_string(std::stoi(match[1]) + (up ? 1 : -1)) +
         (match[2] == "SEND" ? "RECV_" : "SEND_") + match[3].str() + match[4].str();
}

// Edits the file as a help says. Returns nullopt for a help that is no edit.
std::optional<ir::Source> follow(const ir::Diagnostic& error, const ir::Source& source) {
  Sheet sheet(source);
  std::smatch match;
  const auto is = [&](const char* pattern) {
    return std::regex_search(error.help, match, std::regex(pattern),
                             std::regex_constants::match_continuous);
  };
  const auto place = [&] { return sheet.at(error.place); };
  if (is("(?:write|did you mean) `([^`]+)` here, and `([^`]+)` on rank ([0-9]+)$")) {
    const auto [cells, index] = place();
    (*cells)[index] = match[1];
    sheet.row(std::stoi(match[3])).push_back(match[2]);
  } else if (is("(?:write|did you mean) `([^`]+)`")) {
    // An action replaces its cell, anything else the marked text.
    const std::string text = match[1];
    if (!std::regex_search(text, std::regex("^[0-9(].*[A-Z]"))) {
      ir::Source edited = source;
      edited.text.replace(*error.place.offset, error.place.length, text);
      return edited;
    }
    (*place().first)[place().second] = text;
  } else if (is("remove it and its other end$")) {
    const std::string cell = (*place().first)[place().second];
    sheet.remove(place());
    sheet.remove(sheet.find(other_end(cell)));
  } else if (is("remove it and that UNSHARD$")) {
    sheet.remove(place());
    sheet.remove(sheet.at(error.notes[0].place));
  } else if (is("remove (it$|the cell)")) {
    sheet.remove(place());
  } else if (is("remove the row")) {
    sheet.remove_line(error.place);
  } else if (is("remove `([^ `]+): [^`]*` from the header$")) {
    sheet.key(match[1]).clear();
  } else if (is("remove `([^`]+)`$")) {
    sheet.remove(sheet.find(match[1]));
  } else if (is("add `([^`]+)` before it$")) {
    sheet.insert(place(), match[1]);
  } else if (is("add `([^`]+)` after it(?:s last use)?$")) {
    auto where = place();
    if (error.help.ends_with("use")) where.second = where.first->size() - 1;
    sheet.insert({where.first, where.second + 1}, match[1]);
  } else if (is("add `([^`]+)` on rank ([0-9]+)$")) {
    sheet.row(std::stoi(match[2])).push_back(match[1]);
  } else if (is("move it to rank ([0-9]+)$")) {
    const std::string cell = (*place().first)[place().second];
    sheet.remove(place());
    sheet.row(std::stoi(match[1])).push_back(cell);
  } else if (is("move it after `([^`]+)`$")) {
    const std::string cell = (*place().first)[place().second];
    sheet.remove(place());
    const auto after = sheet.find(match[1]);
    sheet.insert({after.first, after.second + 1}, cell);
  } else if (is("move `([^`]+)` to the end of its row$")) {
    const auto moved = sheet.find(match[1]);
    sheet.remove(moved);
    moved.first->push_back(match[1]);
  } else if (is("move `([^`]+)` before `([^`]+)`$")) {
    sheet.remove(sheet.find(match[1]));
    sheet.insert(sheet.find(match[2]), match[1]);
  } else if (is("move `([^`]+)` before it$")) {
    const auto before = place();  // the moved cell comes after it
    sheet.remove(sheet.find(match[1]));
    sheet.insert(before, match[1]);
  } else if (is("set `([a-z-]+): ([^`]+)`")) {
    sheet.key(match[1]) = {match[1].str() + ":", match[2]};
  } else {
    return std::nullopt;
  }
  return sheet.source();
}

// Whether a help says what to edit. Some of those describe more than one edit, or a form.
bool is_edit(const std::string& help) {
  static const std::regex edit("(write|did you mean|remove|add|move|set|list|post) .*");
  static const std::regex left_to_readers(
      "write (an action|a compound|the parts) .*|remove the quotes|move it before the first row|"
      "list each rank once.*|post the RECVs of rank.*");
  return std::regex_match(help, edit) && !std::regex_match(help, left_to_readers);
}

bool has_error(const ir::Source& source, const ir::Diagnostic& error) {
  const CompileResult result = compile({.source = &source});
  return std::ranges::any_of(result.diagnostics.kept(), [&](const ir::Diagnostic& one) {
    return one.rule == error.rule && one.message == error.message;
  });
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(HelpTest, TheErrorGoesIfItsHelpIsFollowed) {
  std::set<std::string> fixed;
  for (const auto& entry : std::filesystem::directory_iterator("tests/bad")) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("PW") || (!name.ends_with(".csv") && !name.ends_with(".plan"))) continue;
    const ir::Source source{name, read_file(entry.path())};
    const CompileResult result = compile({.source = &source});
    for (const ir::Diagnostic& error : result.diagnostics.kept()) {
      const std::optional<ir::Source> edited = follow(error, source);
      EXPECT_EQ(edited.has_value(), is_edit(error.help)) << name << ": " << error.help;
      if (!edited) continue;
      EXPECT_NE(edited->text, source.text) << name << ": " << error.help;
      EXPECT_FALSE(has_error(*edited, error))
          << name << ": " << error.message << "\nhelp: " << error.help << "\n"
          << edited->text;
      fixed.insert(ir::code(error.rule));
    }
  }
  for (const char* code : {"PW003", "PW004", "PW005", "PW007", "PW018", "PW020", "PW022", "PW024",
                           "PW025", "PW026", "PW027", "PW029", "PW030", "PW031", "PW032", "PW033",
                           "PW034", "PW035", "PW037", "PW038", "PW039", "PW040", "PW050", "PW051",
                           "PW052", "PW053", "PW054", "PW060", "PW061", "PW062", "PW063", "PW088"})
    EXPECT_TRUE(fixed.contains(code)) << code << " has no help that can be followed";
}

// A lowered program with one WAIT changed: missing, twice, before what it waits for, of a SEND that
// the rank does not have, or after the next REDUCE_GRAD. One rule refuses each, and its help makes
// the program valid again.
TEST(HelpTest, WaitsCanBeMended) {
  int64_t mutants = 0;
  const auto expect_mended = [&](std::vector<std::vector<std::string>> rows, const char* code) {
    ir::Source source{"a.csv", ""};
    for (const auto& row : rows) {
      for (const std::string& cell : row) source.text += cell + ",";
      source.text.back() = '\n';
    }
    const CompileResult result = compile({.source = &source});
    ASSERT_FALSE(result.ok()) << code << "\n" << source.text;
    const ir::Diagnostic& error = result.diagnostics.kept()[0];
    EXPECT_EQ(ir::code(error.rule), code) << error.message << "\n" << source.text;
    const std::optional<ir::Source> mended = follow(error, source);
    ASSERT_TRUE(mended) << error.help;
    EXPECT_TRUE(compile({.source = &*mended}).ok()) << error.help << "\n" << mended->text;
    ++mutants;
  };
  for (const char* name : {"1F1B", "Interleaved1F1B", "ZBV"}) {
    const CompileResult lowered =
        compile({.source = std::string(name), .shape = {.ranks = 3, .microbatches = 3}});
    std::vector<std::vector<std::string>> rows;
    for (const ir::Row& row : lowered.program().rows) {
      rows.emplace_back();
      for (const ir::Action& action : row) rows.back().push_back(ir::to_string(action));
    }
    for (auto& row : rows) {
      const auto whole = row;
      for (size_t i = 0; i < whole.size(); ++i) {
        const std::string& wait = whole[i];
        if (wait.find("WAIT") == std::string::npos) continue;
        std::string awaited = wait;
        awaited.erase(awaited.find("WAIT_"), 5);
        const auto at = [&](size_t step) {
          return row.begin() + static_cast<std::ptrdiff_t>(step);
        };
        row.erase(at(i));
        expect_mended(rows, "PW039");
        row.insert(std::ranges::find(row, awaited), wait);
        expect_mended(rows, "PW038");
        row = whole;
        if (wait.find("REDUCE") == std::string::npos) {
          row.push_back(wait);
          expect_mended(rows, "PW033");
        } else {
          const auto next = std::find_if(at(i), row.end(), [](const std::string& cell) {
            return cell.find("REDUCE_GRAD") != std::string::npos &&
                   cell.find("WAIT") == std::string::npos;
          });
          if (next != row.end()) {
            row.insert(next + 1, wait);
            row.erase(at(i));
            expect_mended(rows, "PW063");
          }
        }
        row = whole;
      }
    }
    rows[0].push_back("0WAIT_SEND_B0");
    expect_mended(rows, "PW038");
  }
  EXPECT_GT(mutants, 100);
}

// PW042: lowered again, the program runs.
TEST(HelpTest, ADeadlockedProgramIsLoweredAgain) {
  const ir::Source source{"PW042.csv", read_file("tests/bad/PW042.csv")};
  const CompileResult dead = compile({.source = &source});
  ASSERT_EQ(dead.diagnostics.kept()[0].rule, ir::Rule::kDeadlock);
  EXPECT_NE(dead.diagnostics.kept()[0].help.find("--level compute_only"), std::string::npos);
  const CompileResult order = compile({.source = &source, .level = ir::Level::kComputeOnly});
  ASSERT_TRUE(order.ok());
  EXPECT_TRUE(compile({.source = *order.schedule}).ok());
  // If the computes alone deadlock, that would not help, and nothing is said.
  const ir::Source hopeless{"a.csv",
                            "0F0,0SEND_F0,0RECV_B0,0B0,0F1,0SEND_F1,0RECV_B1,0B1\n"
                            "1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n"};
  const CompileResult stuck = compile({.source = &hopeless});
  ASSERT_EQ(stuck.diagnostics.kept()[0].rule, ir::Rule::kDeadlock);
  EXPECT_EQ(stuck.diagnostics.kept()[0].help, "");
}

}  // namespace
}  // namespace pipewright::schedule
