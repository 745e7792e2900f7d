#!/bin/sh
# Puts the page and its scripts into a C++ string: embed.sh PAGE SCRIPT... >viewer_page.cc
set -eu
page=$1
shift
script=$(mktemp)
trap 'rm -f "$script"' EXIT
cat "$@" >"$script"
echo '#include "pipewright/schedule/views/html.h"'
echo 'namespace pipewright::schedule {'
printf 'const std::string_view kViewerPage = R"viewer('
sed -e "/^@SCRIPT@\$/{r $script" -e 'd}' "$page"
echo ')viewer";'
echo '}  // namespace pipewright::schedule'
