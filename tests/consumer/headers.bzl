"""What a workspace that depends on pipewright can include, as targets that build only if that is so."""

def includes_each(name, headers, deps):
    """A library per header, whose only source includes that header and nothing else."""
    libraries = []
    for header in _without_tables(headers):
        libraries.append(name + "/" + header[:-len(".h")])
        includes_all(libraries[-1], [header], deps)
    native.filegroup(name = name, srcs = libraries)

def includes_all(name, headers, deps):
    """A library whose only source includes these headers."""
    _library(name, ['#include "pipewright/%s"' % header for header in _without_tables(headers)], deps)

def cannot_include(name, headers, deps):
    """A library that does not compile if the compiler finds one of `headers`."""
    lines = []
    for header in headers:
        lines += ['#if __has_include("pipewright/%s")' % header, "#error %s is not public" % header, "#endif"]
    _library(name, lines, deps)

def _without_tables(headers):
    """Without the .def files, which headers include."""
    return [header for header in headers if header.endswith(".h")]

def _library(name, lines, deps):
    native.genrule(
        name = name + "_source",
        outs = [name + ".cc"],
        cmd = "cat >$@ <<'END'\n%s\nEND" % "\n".join(lines),
    )
    native.cc_library(name = name, srcs = [name + ".cc"], deps = deps)
