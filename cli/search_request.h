#ifndef PIPEWRIGHT_CLI_SEARCH_REQUEST_H_
#define PIPEWRIGHT_CLI_SEARCH_REQUEST_H_

#include <string>
#include <vector>

#include "pipewright/cli/command_table.h"
#include "pipewright/cli/console.h"
#include "pipewright/cli/invocation.h"
#include "pipewright/schedule/problem/layers.h"
#include "pipewright/schedule/search/front.h"
#include "pipewright/schedule/search/search.h"

// What the words after `pipewright search` ask for.

namespace pipewright::cli {

// The options of `search`, without cost_options().
std::vector<OptionSpec> search_options();

struct AskedSearch {
  std::string placement;  // "loop", "v", "wave" or "free"
  int ranks = 0, stages = 0;
  bool cuts_layers = false;  // --layers
  schedule::Cut cut = {};    // of costs with layers otherwise
  schedule::search::SearchRequest request;
  // The same for the other sizes of --microbatch-sizes, with a share of the budget each.
  std::vector<schedule::search::SearchRequest> other_sizes = {};
};

// Throws UsageError, FileError, or Failed after printing the errors in a costs file. At least one
// schedule fits the memory of the request.
AskedSearch read_search(const Invocation& invocation, Console& console);

// The request of one point of the front of `whole`, one of the requests of `asked`, whose placement
// is "free".
schedule::search::SearchRequest request_of(const AskedSearch& asked,
                                           const schedule::search::SearchRequest& whole,
                                           const schedule::search::FrontPoint& point);

}  // namespace pipewright::cli

#endif  // PIPEWRIGHT_CLI_SEARCH_REQUEST_H_
