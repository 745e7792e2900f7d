#ifndef PIPEWRIGHT_CLI_SEARCH_REPORT_H_
#define PIPEWRIGHT_CLI_SEARCH_REPORT_H_

#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include "pipewright/schedule/search/front.h"
#include "pipewright/schedule/search/search.h"

// What `pipewright search` prints: text, the front of memory against cost, and JSON.

namespace pipewright::cli {

// The result of one search. `placement` is its name on the command line.
void print_result(const std::string& placement, const schedule::search::SearchRequest& request,
                  const schedule::search::SearchResult& result, std::ostream& out);

// The members of the JSON object of one search, each line indented by `indent`.
std::string result_json(const std::string& placement,
                        const schedule::search::SearchRequest& request,
                        const schedule::search::SearchResult& result, std::string_view indent);

// One line per search, and a bar for its idle time: the picture of the front.
void print_front(const std::vector<schedule::search::FrontPoint>& points, std::ostream& out);

}  // namespace pipewright::cli

#endif  // PIPEWRIGHT_CLI_SEARCH_REPORT_H_
