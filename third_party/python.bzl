"""The headers of the local python3, for the extension module that @torch_site's torch loads."""

def _python_headers_impl(ctx):
    found = ctx.execute(["python3", "-c", "import sysconfig; print(sysconfig.get_paths()['include'])"])
    include = found.stdout.strip()
    if found.return_code != 0 or not ctx.path(include + "/Python.h").exists:
        fail("python3 has no headers (Debian: python3-dev): %s/Python.h is missing\n%s" % (include, found.stderr))
    ctx.symlink(include, "include")
    ctx.file("BUILD", """
cc_library(
    name = "headers",
    hdrs = glob(["include/**/*.h"]),
    includes = ["include"],
    visibility = ["@%s//third_party:__pkg__"],
)
""" % Label("//third_party:python.bzl").workspace_name)

# `@python_headers//:headers`, fetched only for targets tagged `peer`.
python_headers = repository_rule(implementation = _python_headers_impl, environ = ["PATH"], local = True)
