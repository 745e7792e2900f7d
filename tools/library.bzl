"""`pipewright_library`: a cc_library whose headers are included as `pipewright/<folder>/<header>`.

The same path works in this tree, from another Bazel workspace and after an installation.
"""

def pipewright_library(**kwargs):
    native.cc_library(include_prefix = "pipewright", strip_include_prefix = "/", **kwargs)
