"""What Debian's Bazel 4.2.3 looks for and cannot download. A newer Bazel brings its own."""

def bazel4_repositories():
    # Debian's build reports no version at all; every released Bazel reports its own.
    if native.bazel_version and not native.bazel_version.startswith("4."):
        return

    # Bazel 4 always resolves these four names, and Debian's bazel-rules-cc is too new for it.
    native.local_repository(name = "rules_cc", path = "third_party/bazel4/rules_cc")
    native.local_repository(name = "remote_coverage_tools", path = "third_party/bazel4/remote_coverage_tools")
    native.local_repository(name = "rules_java", path = "/usr/share/bazel/rules/java")
    native.local_repository(name = "rules_proto", path = "/usr/share/bazel/rules/proto")
