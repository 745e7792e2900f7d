// `list --json` has the contents of `list`, and `list NAME` the part of one schedule.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "pipewright/cli/views.h"
#include "pipewright/ir/text/read.h"
#include "tests/support/shell/shell.h"

namespace {

using pipewright::tests::run_shell;

std::string list(const std::string& arguments) {
  return run_shell("cli/pipewright list " + arguments).text;
}

// `print --format` and `-o FILE` know every format that is read.
TEST(ListTest, EveryFormatOfSchedulesIsAView) {
  for (const pipewright::ir::Format& format : pipewright::ir::formats()) {
    const pipewright::cli::View* const view = pipewright::cli::find_view(format.name);
    ASSERT_NE(view, nullptr) << format.name;
    EXPECT_EQ("." + std::string(view->extension), format.extension);
  }
}

TEST(ListTest, TheDataAreThoseOfTheText) {
  const std::string text = list("");
  const auto json = nlohmann::json::parse(list("--json"));
  EXPECT_EQ(json["version"], 1);
  size_t schedules = 0;
  for (const auto& schedule : json["schedules"]) {
    const std::string name = schedule["name"];
    SCOPED_TRACE(name);
    // Some names begin with others.
    const size_t begin =
        std::min(text.find("\n\n" + name + "\n"), text.find("\n\n" + name + "  ("));
    ASSERT_NE(begin, std::string::npos);
    const std::string part = text.substr(begin, text.find("\n\n", begin + 2) - begin);
    const auto expect_in_text = [&](const nlohmann::json& value) {
      EXPECT_NE(part.find(value.get<std::string>()), std::string::npos) << value << part;
    };
    for (const char* key : {"placement", "backward", "bubble", "memory", "source", "ready_file"})
      expect_in_text(schedule[key]);
    for (const char* key : {"bubble_where", "bubble_note"}) {
      if (!schedule[key].is_null()) expect_in_text(schedule[key]);
    }
    for (const auto& alias : schedule["aliases"]) expect_in_text(alias);
    for (const auto& constraint : schedule["constraints"]) {
      expect_in_text(constraint["rule"]);
      expect_in_text(constraint["reason"]);
    }
    for (const auto& option : schedule["options"]) expect_in_text(option["meaning"]);
    EXPECT_EQ(pipewright::tests::count(part, "requires"),
              static_cast<int>(schedule["constraints"].size()));
    EXPECT_EQ(nlohmann::json::parse(list(name + " --json"))["schedules"],
              nlohmann::json::array({schedule}));
    EXPECT_NE(list(name).find(part.substr(1, part.find_last_not_of('\n'))), std::string::npos);
    ++schedules;
  }
  EXPECT_EQ(schedules, static_cast<size_t>(pipewright::tests::count(text, "\n  placement")));
}

}  // namespace
