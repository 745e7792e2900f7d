"""The folders that may use comms."""

COMMS_USERS = [
    "//:__pkg__",
    "//bench:__subpackages__",
    "//checkpoint:__subpackages__",
    "//comms:__subpackages__",
    "//ddp:__subpackages__",
    "//examples:__subpackages__",
    "//executor:__subpackages__",
    "//fsdp:__subpackages__",
    "//modules:__pkg__",
    "//python:__subpackages__",
    "//tests:__subpackages__",
    "//tp:__subpackages__",
]
