"""cc_library, cc_binary and cc_test as this tree uses them, and `pipewright_library` for its public headers.

Targets with //third_party:libtorch in their deps are compiled with LibTorch's precompiled header: see
third_party/precompiled_header.bzl.
"""

_PRECOMPILED_TORCH = [
    "-Winvalid-pch",
    "-include",
    "torch_precompiled.h",
    "-include",
    "torch_precompiled_id.h",
    # gcc's garbage collector would walk the whole precompiled header again and again: a tenth of the time to compile.
    "--param=ggc-min-expand=300",
    "--param=ggc-min-heapsize=2000000",
]

def _with_precompiled_header(arguments):
    if "//third_party:libtorch" not in arguments.get("deps", []):
        return arguments
    return dict(arguments, copts = arguments.get("copts", []) + select({
        "//third_party:precompiled_headers": _PRECOMPILED_TORCH,
        "//conditions:default": [],
    }))

def cc_library(**arguments):
    native.cc_library(**_with_precompiled_header(arguments))

def cc_binary(**arguments):
    native.cc_binary(**_with_precompiled_header(arguments))

def cc_test(**arguments):
    native.cc_test(**_with_precompiled_header(arguments))

def cc_tests(deps, tests):
    """A small test per entry of `tests`, with gtest's main and all of `deps`: what one does not use, it does not link.

    Args:
      deps: of all of them.
      tests: by name, further arguments of cc_test; `srcs` is [NAME.cc] if it is left out.
    """
    for name, arguments in tests.items():
        cc_test(**dict(test_arguments(name, arguments), deps = deps + ["//third_party:gtest_main"]))

def test_arguments(name, arguments):
    """The arguments of a test that has these in a table: small, from NAME.cc, unless they say otherwise."""
    return dict({"name": name, "size": "small", "srcs": [name + ".cc"]}, **arguments)

def pipewright_library(**arguments):
    """A cc_library whose headers are included as `pipewright/<folder>/<header>`.

    The same path works in this tree, from another Bazel workspace and after an installation.
    """
    cc_library(include_prefix = "pipewright", strip_include_prefix = "/", **arguments)
