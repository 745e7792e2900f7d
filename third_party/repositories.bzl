"""All repositories that pipewright needs, for this workspace and for one that uses pipewright:

    local_repository(name = "pipewright", path = "...")
    load("@pipewright//third_party:repositories.bzl", "pipewright_repositories")
    pipewright_repositories()
"""

load("//third_party:bazel4.bzl", "bazel4_repositories")
load("//third_party:python.bzl", "python_headers")
load("//third_party:torch.bzl", "libtorch", "torch_site")

def pipewright_repositories():
    bazel4_repositories()

    # LibTorch for CPUs: three wheels of PyPI, or the folder that LIBTORCH_SITE names.
    libtorch(name = "libtorch")

    # All that torch's metadata requires (5.5 GB): CUDA, cuDNN, NCCL, and torch as Python.
    # Fetched only for --config=cuda and for tests tagged `peer`.
    torch_site(name = "torch_site")
    libtorch(name = "libtorch_cuda", cuda = True)

    # Of the python3 that runs torch's Python; fetched only for targets tagged `peer`.
    python_headers(name = "python_headers")

    # Libraries that Debian packages: tools/setup installs them.
    native.new_local_repository(
        name = "system",
        build_file = str(Label("//third_party:system.BUILD")),
        path = "/usr",
    )
