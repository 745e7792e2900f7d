#include <iostream>

#include "pipewright/cli/parse.h"

int main(int argc, char** argv) {
  std::ios::sync_with_stdio(false);
  pipewright::cli::Console console{std::cin, std::cout, std::cerr};
  return pipewright::cli::run_program(argc, argv, console);
}
