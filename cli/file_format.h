#ifndef PIPEWRIGHT_CLI_FILE_FORMAT_H_
#define PIPEWRIGHT_CLI_FILE_FORMAT_H_

#include <string>
#include <string_view>

// The format of an output file follows from its extension.

namespace pipewright::cli {

// Whether a format is a picture of times, such as "svg", rather than one that is read back.
bool is_picture(std::string_view format);

// The format that the extension of a file names ("out.svg", "OUT.SVG"); empty if it names none.
std::string format_of_extension(const std::string& path);

}  // namespace pipewright::cli

#endif  // PIPEWRIGHT_CLI_FILE_FORMAT_H_
