"""Repositories that Debian's Bazel 4.2.3 requires and cannot download. A newer Bazel has its own."""

def _folder_impl(ctx):
    for entry in ctx.path(ctx.attr.build).dirname.readdir():
        ctx.symlink(entry, entry.basename)

# A repository that is a folder of this repository. Not a local_repository, whose path is relative to the main
# workspace.
_folder = repository_rule(
    implementation = _folder_impl,
    attrs = {"build": attr.label(doc = "the BUILD file at the top of the folder")},
    local = True,
)

def bazel4_repositories():
    # Debian's build reports no version at all; every released Bazel reports its own.
    if native.bazel_version and not native.bazel_version.startswith("4."):
        return

    # Bazel 4 always resolves these four names, and Debian's bazel-rules-cc is too new for it.
    _folder(name = "rules_cc", build = Label("//third_party/bazel4/rules_cc:BUILD"))
    _folder(name = "remote_coverage_tools", build = Label("//third_party/bazel4/remote_coverage_tools:BUILD"))
    native.local_repository(name = "rules_java", path = "/usr/share/bazel/rules/java")
    native.local_repository(name = "rules_proto", path = "/usr/share/bazel/rules/proto")
