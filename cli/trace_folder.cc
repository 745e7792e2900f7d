#include "pipewright/cli/trace_folder.h"

#include <fmt/format.h>

#include <filesystem>
#include <ostream>
#include <set>
#include <system_error>

#include "pipewright/cli/files.h"
#include "pipewright/ir/diagnostic.h"

namespace pipewright::cli {

void write_trace_folder(const std::string& folder, const schedule::KinetoTraces& traces,
                        Console& console) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    throw FileError(
        fmt::format("cannot create the folder {}: {}", ir::backticked(folder), error.message()));
  std::set<std::string> names;
  for (size_t rank = 0; rank < traces.num_ranks(); ++rank)
    names.insert(fmt::format("rank_{}.json", rank));
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string extension = entry.path().extension().string();
    if ((extension == ".json" || extension == ".gz") &&
        !names.contains(entry.path().filename().string()))
      throw FileError(fmt::format(
          "cannot write traces to {}: expected no others there, got {}, which a reader would take "
          "for that of a rank",
          ir::backticked(folder), ir::backticked(entry.path().filename().string())));
  }
  for (size_t rank = 0; rank < traces.num_ranks(); ++rank) {
    write_output((std::filesystem::path(folder) / fmt::format("rank_{}.json", rank)).string(),
                 console, [&](std::ostream& out) { traces.print(rank, out); });
  }
}

}  // namespace pipewright::cli
