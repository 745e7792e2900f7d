#include "pipewright/cli/file_format.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "pipewright/cli/simulation.h"
#include "pipewright/ir/text/read.h"

namespace pipewright::cli {

bool is_picture(std::string_view format) {
  const auto pictures = picture_formats();
  return std::ranges::find(pictures, format) != pictures.end();
}

std::string format_of_extension(const std::string& path) {
  std::string extension = std::filesystem::path(path).extension().string();
  if (!extension.empty()) extension.erase(0, 1);
  for (char& letter : extension)
    letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  const bool is_file_format = std::ranges::find(ir::formats(), std::string_view(extension),
                                                &ir::FormatInfo::name) != ir::formats().end();
  return is_file_format || is_picture(extension) ? extension : "";
}

}  // namespace pipewright::cli
