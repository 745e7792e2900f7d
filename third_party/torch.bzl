"""LibTorch and the Python torch, from PyPI's wheels of torch.lock (checked by hash) or from a site-packages folder.

LIBTORCH_SITE, where set, names a site-packages folder with a supported torch in it, and nothing is downloaded. For
--config=cuda and for the tests tagged `peer` it must hold torch's own dependencies too.

`@libtorch` has headers and libraries for CPUs. `@libtorch_cuda` adds those of CUDA and NCCL to it: the objects are the
same, so a build for CUDA compiles only the files that include CUDA's own headers.
"""

# The oldest and the newest minor version of torch that are supported. cmake/torch.cmake has them too.
_OLDEST = (2, 11)
_NEWEST = (2, 15)

# What libtorch_cpu.so of the CUDA build needs beside it, and no more.
_CPU_WHEELS = ["torch", "nvidia-cuda-runtime", "nvidia-cuda-cupti"]

# Folders under nvidia/ that hold libraries which LibTorch's libraries look for.
_NVIDIA_FOLDERS = ["cu13", "cudnn", "cusparselt", "nccl", "nvshmem"]

def _locked_lines(ctx):
    return ctx.read(ctx.path(Label("//third_party:torch.lock"))).split("\n")

def _locked_torch(ctx):
    """The version of torch in torch.lock, such as "2.11.0"."""
    return [line for line in _locked_lines(ctx) if line.startswith("torch==")][0].split(" ")[0].split("==")[1]

def _pip_install(ctx, names, options):
    """Installs the wheels of torch.lock called `names` (all of them for None) into ./site."""
    lines = []
    keep = False
    wanted = {name: True for name in names or []}
    for line in _locked_lines(ctx):
        if not line.startswith(" "):
            keep = names == None or line.split("==")[0] in wanted
        if keep:
            lines.append(line)
    ctx.file("wheels.lock", "\n".join(lines))
    command = ["python3", "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    command += ["--no-compile", "--disable-pip-version-check", "--target", "site", "-r", "wheels.lock"]
    done = ctx.execute(command + options, timeout = 3600)
    if done.return_code != 0:
        fail(("pip could not install torch %s from PyPI (it needs python3 with pip; PyPI's wheels are for x86-64 Linux). " +
              "LIBTORCH_SITE can name a site-packages folder that has torch already. pip said:\n%s") %
             (_locked_torch(ctx), done.stderr))
    return str(ctx.path("site"))

def _given_site(ctx):
    """The folder of LIBTORCH_SITE, checked, or None."""
    site = ctx.os.environ.get("LIBTORCH_SITE", "")
    if not site:
        return None
    version = ctx.path(site + "/torch/version.py")
    if not version.exists:
        fail("LIBTORCH_SITE=%s holds no torch: %s is missing" % (site, version))
    number = ctx.read(version).split("__version__ = '")[1].split("'")[0].split("+")[0]
    minor = tuple([int(part) for part in number.split(".")[:2]])
    if minor < _OLDEST or minor > _NEWEST:
        fail("LIBTORCH_SITE=%s: expected torch %d.%d to %d.%d, got %s" % ((site,) + _OLDEST + _NEWEST + (number,)))
    return site

def _torch_site_impl(ctx):
    ctx.report_progress("installing torch %s with its dependencies (5.5 GB)" % _locked_torch(ctx))
    site = _given_site(ctx) or _pip_install(ctx, None, [])
    ctx.file("site_path", site)
    ctx.file("BUILD", """
exports_files(["site_path"])
# A text file with the folder that a peer's PYTHONPATH must name.
filegroup(name = "path", srcs = ["site_path"], visibility = ["//visibility:public"])
""")

# `@torch_site//:path`: a file that names a folder with torch and all that it requires, for the local python3.
torch_site = repository_rule(implementation = _torch_site_impl, environ = ["LIBTORCH_SITE"])

# //third_party of this repository, which is not always the main one.
_THIRD_PARTY = "@%s//third_party:__pkg__" % Label("//third_party:torch.lock").workspace_name

def _libtorch_impl(ctx):
    if ctx.attr.cuda:
        site = ctx.read(ctx.path(Label("@torch_site//:site_path")))
    else:
        # Only the libraries are used, so any python3 may fetch the wheel of this one.
        abi = ["--python-version=3.11", "--implementation=cp", "--abi=cp311", "--abi=none"]
        abi += ["--platform=manylinux_2_28_x86_64", "--platform=manylinux_2_25_x86_64", "--platform=manylinux_2_17_x86_64"]
        ctx.report_progress("installing LibTorch %s (550 MB)" % _locked_torch(ctx))
        site = _given_site(ctx) or _pip_install(ctx, _CPU_WHEELS, abi)
    ctx.symlink(site + "/torch/include", "include")
    ctx.symlink(site + "/nvidia", "nvidia")

    # Absolute folders, so that each library finds its neighbours by its own RUNPATH; Bazel's _solib links would
    # hide them. On another machine, LD_LIBRARY_PATH names its torch/lib and nvidia/*/lib.
    folders = [site + "/torch/lib"] + [site + "/nvidia/" + folder + "/lib" for folder in _NVIDIA_FOLDERS]
    search = []
    for folder in folders:
        search += ["-L" + folder, "-Wl,-rpath," + folder, "-Wl,-rpath-link," + folder]

    # Not libtorch.so: it needs libtorch_cuda.so.
    libraries = ["-ltorch_cpu", "-lc10", "-l:libcudart.so.13", "-l:libcupti.so.13"]
    if ctx.attr.cuda:
        # Nothing calls into these by name: they register themselves when they are loaded.
        # By depending on @libtorch this comes before it at link, so that the folders of @torch_site, which has all of
        # CUDA's libraries, are searched first.
        libraries = ["-Wl,--no-as-needed", "-ltorch_cuda", "-lc10_cuda", "-Wl,--as-needed", "-l:libnccl.so.2"]
        ctx.file("BUILD", """
cc_library(
    name = "cuda",
    hdrs = glob(["nvidia/cu13/include/**", "nvidia/nccl/include/**"], allow_empty = True),
    includes = ["nvidia/cu13/include", "nvidia/nccl/include"],
    linkopts = %s,
    visibility = ["%s"],
    deps = ["@libtorch//:libtorch"],
)
""" % (repr(search + libraries), _THIRD_PARTY))
        return
    ctx.file("BUILD", """
package(default_visibility = ["%s", "@libtorch_cuda//:__pkg__"])

cc_library(
    name = "libtorch",
    hdrs = glob(["include/**/*.h", "include/**/*.hpp", "include/**/*.cuh"]),
    includes = ["include", "include/torch/csrc/api/include"],
    linkopts = %s,
)
""" % (_THIRD_PARTY, repr(search + libraries)))

libtorch = repository_rule(
    implementation = _libtorch_impl,
    attrs = {"cuda": attr.bool(doc = "link libtorch_cuda and NCCL, from @torch_site")},
    environ = ["LIBTORCH_SITE"],
)
