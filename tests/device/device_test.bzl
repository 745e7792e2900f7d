"""Test bodies that run on the CPU and on the test device, there with one or more seeds: orders of execution."""

load("//tools:library.bzl", "cc_library", "cc_test")

def cpu_and_device_test(name, srcs, deps, seeds = 1, device_filter = "*", device_size = None, **arguments):
    """A test `name` on the CPU; the same body as `name`_on_device, and with 20 seeds as `name`_20_seeds (manual).

    Args:
      seeds: how many seeds `name`_on_device runs, one after the other.
      device_filter: gtest's filter of what runs on the device.
      device_size: the size of `name`_on_device; by default that of `name`.
      **arguments: of cc_test.
    """
    cc_library(
        name = name + "_body",
        testonly = True,
        srcs = srcs,
        deps = deps,
        alwayslink = True,
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
                args = ["--gtest_repeat=" + str(repeat), "--gtest_filter=" + device_filter],
                size = size,
                tags = arguments.get("tags", []) + tags
            )
        )
