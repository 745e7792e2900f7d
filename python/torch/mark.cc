// Says for which torch this library is built. _version.py reads it from the file, before the file
// is loaded: with another torch, loading would fail with a missing symbol, or worse.
#include <torch/headeronly/version.h>

#define PW_TEXT(x) #x
#define PW_VERSION(major, minor) PW_TEXT(major) "." PW_TEXT(minor)

// Exported, so that the linker keeps it.
extern "C" [[gnu::visibility("default")]] const char pipewright_torch_mark[];
const char pipewright_torch_mark[] =
    "pipewright_torch is built for torch " PW_VERSION(TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR);
