"""cc_library, cc_binary and cc_test as this tree uses them, `pipewright_library` for the libraries of its folders, and
`public_library` for what others may depend on.

Targets with //third_party:libtorch in their deps are compiled with LibTorch's precompiled header: see
third_party/precompiled_header.bzl.
"""

load(":batches.bzl", "in_batches")

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

def pipewright_library(batches = True, **arguments):
    """A cc_library whose headers are included as `pipewright/<folder>/<header>`.

    The same path works in this tree, from another Bazel workspace and after an installation.

    Args:
      batches: whether several files are compiled at a time (batches.bzl).
      **arguments: as of cc_library.
    """
    cc_library(
        include_prefix = "pipewright",
        strip_include_prefix = "/",
        **(in_batches(arguments) if batches else arguments)
    )

def _linked_impl(ctx):
    infos = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps])
    return [CcInfo(linking_context = infos.linking_context)]

# What `deps` link, without their headers: who depends on this cannot include them. (Bazel 4 has no implementation_deps.)
_linked = rule(
    implementation = _linked_impl,
    attrs = {"deps": attr.label_list(providers = [CcInfo])},
    provides = [CcInfo],
)

def public_library(name, headers, parts, deps = [], **arguments):
    """A library for other workspaces and for examples: what it has is `parts`, and what users may include is `headers`.

    Args:
      name: its name.
      headers: their paths in this tree, as in public_headers.bzl.
      parts: the libraries that it links.
      deps: other people's libraries, and public libraries, whose headers `headers` include.
      **arguments: as of cc_library.
    """
    _linked(name = name + "_parts", deps = parts, tags = arguments.get("tags", []))
    native.cc_library(
        name = name,
        hdrs = [label_of(header) for header in headers],
        include_prefix = "pipewright",
        strip_include_prefix = "/",
        visibility = ["//visibility:public"],
        deps = deps + [":" + name + "_parts"],
        **arguments
    )

def label_of(path):
    """The label of a file in a folder that is a package: `//ir:action.h` of `ir/action.h`."""
    folder, _, file = path.rpartition("/")
    return "//" + folder + ":" + file
