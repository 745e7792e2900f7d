#ifndef PIPEWRIGHT_SCHEDULE_VIEWS_VIEWER_PAGE_H_
#define PIPEWRIGHT_SCHEDULE_VIEWS_VIEWER_PAGE_H_

#include <string_view>

namespace pipewright::schedule {

// The page of html.h, with `@DATA@` where the data belongs: viewer/page.html with the scripts
// beside it, put together by the build.
extern const std::string_view kViewerPage;

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_VIEWS_VIEWER_PAGE_H_
