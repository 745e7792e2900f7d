#include <iostream>

#include "pipewright/cli/help.h"

// Writes pipewright(1) to stdout, for the build.
int main() { std::cout << pipewright::cli::man_page(); }
