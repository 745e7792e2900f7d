"""Sources that are compiled several at a time.

Files of one folder include nearly the same headers, and parsing these and compiling the templates in them takes most of
their time. So pipewright_library writes up to eight of its .cc files, in the order of its list, into one and compiles that:
from empty caches in a third of the time or less, while a change of one file costs a second or two more. Lines keep their
names and numbers in messages, debuggers and sanitizers.

What it takes: names in anonymous namespaces differ within a folder, and no .cc file leaves a macro behind. Whether a file
includes what it uses shows with --config=no-precompiled-headers, as tools/lint compiles.
"""

_SIZE = 8

def _batches_impl(ctx):
    batches = []
    for start in range(0, len(ctx.files.srcs), _SIZE):
        files = ctx.files.srcs[start:start + _SIZE]
        batch = ctx.actions.declare_file("%s_%d.cc" % (ctx.label.name, start // _SIZE + 1))
        ctx.actions.run_shell(
            inputs = files,
            outputs = [batch],
            command = "for file in %s; do printf '#line 1 \"%%s\"\\n' $file; cat $file; done >%s" % (
                " ".join([file.path for file in files]),
                batch.path,
            ),
            mnemonic = "BatchSources",
        )
        batches.append(batch)
    return [DefaultInfo(files = depset(batches))]

_batches = rule(
    implementation = _batches_impl,
    attrs = {"srcs": attr.label_list(allow_files = [".cc"])},
)

def in_batches(arguments):
    """The arguments of a library whose `srcs` are compiled in batches, unless a build compiles each file."""
    srcs = arguments.get("srcs", [])
    if type(srcs) != "list" or len(srcs) < 2 or [src for src in srcs if not src.endswith(".cc")]:
        return arguments
    name = arguments["name"] + "_batch"
    _batches(name = name, srcs = srcs, tags = arguments.get("tags", []), visibility = ["//visibility:private"])
    return dict(arguments, srcs = select({
        "//tools:each_file": srcs,
        "//conditions:default": [":" + name],
    }))
