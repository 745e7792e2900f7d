"""Test bodies that run on the CPU, on the test device, and on GPUs."""

load("//tools:library.bzl", "cc_library", "cc_test", "test_arguments")

_CPU_ONLY = "cpu_only:"

def cpu_and_device_test(
        name,
        srcs,
        deps,
        seeds = 1,
        cpu_only = [],
        slow_on_test_device = [],
        device_size = None,
        **arguments):
    """A test `name` on the CPU; the same body as `name`_on_device, and with 20 seeds as `name`_20_seeds (manual).

    Args:
      seeds: how many seeds `name`_on_device runs, one after the other. A seed is an order of execution.
      cpu_only: patterns of gtest's filter: tests that are about the CPU, such as its memory.
      slow_on_test_device: patterns of tests that run on the CPU and on GPUs only.
      device_size: the size of `name`_on_device; by default that of `name`.
      **arguments: of cc_test.
    """
    cc_library(
        name = name + "_body",
        testonly = True,
        srcs = srcs,
        deps = deps,
        alwayslink = True,
        tags = [_CPU_ONLY + pattern for pattern in cpu_only],
    )
    cc_test(
        name = name,
        deps = [":" + name + "_body", "//third_party:gtest_main"],
        **arguments
    )
    for suffix, repeat, size, tags in [
        ("_on_device", seeds, device_size or arguments["size"], []),
        ("_20_seeds", 20, "enormous", ["manual"]),
    ]:
        cc_test(
            name = name + suffix,
            deps = [":" + name + "_body", "//tests/device:checks", "//tests/device:ground", "//third_party:gtest_main"],
            visibility = ["//tests/device:__pkg__"],
            **dict(
                arguments,
                args = ["--gtest_repeat=" + str(repeat), "--gtest_filter=-" + ":".join(cpu_only + slow_on_test_device)],
                size = size,
                tags = arguments.get("tags", []) + tags
            )
        )

def cpu_and_device_tests(deps, tests):
    """A cpu_and_device_test per entry of `tests`, like cc_tests."""
    for name, arguments in tests.items():
        cpu_and_device_test(deps = deps, **test_arguments(name, arguments))

def gpu_test(name):
    """Runs all bodies of cpu_and_device_test that stand above it in the package, on GPUs."""
    bodies = [rule for rule in native.existing_rules().values() if rule["name"].endswith("_body")]
    cpu_only = [
        tag[len(_CPU_ONLY):]
        for body in bodies
        for tag in body["tags"]
        if tag.startswith(_CPU_ONLY)
    ]
    cc_test(
        name = name,
        size = "large",
        srcs = ["//tests/gpu:main.cc"],
        local_defines = ['PIPEWRIGHT_CPU_ONLY=\\"%s\\"' % ":".join(cpu_only)],
        tags = ["exclusive", "gpu"],
        deps = [":" + body["name"] for body in bodies] + ["//tests/gpu:ground", "//third_party:gtest"],
    )
