"""A header that the compiler parses once for all files that include it, instead of once for each.

    precompiled_header(name = "torch", hdr = "torch_headers.h", deps = ["@libtorch"])

makes, with the flags that C++ files are compiled with:

    torch_precompiled.h       a copy of `hdr`, for compilers that cannot use the next one
    torch_precompiled.h.gch   `hdr`, parsed by gcc
    torch_precompiled_id.h    a comment: the SHA-256 of torch_precompiled.h.gch

A file is compiled with `-include torch_precompiled.h -include torch_precompiled_id.h`; gcc reads the .gch in place of
the first one. //tools:library.bzl adds these flags.

Why a stale header cannot be used: gcc's list of the files that it read, by which Bazel decides what has to be compiled
again, names neither the .gch nor what went into it, but it does name torch_precompiled_id.h. That one changes whenever
the .gch does. The .gch in turn is made by an action whose inputs are all declared: `hdr`, all headers of `deps`, and
`system_headers`, those of the system and the compiler. gcc itself refuses a .gch of another gcc or of other flags and
then reads torch_precompiled.h; the warning for that is an error in this tree. tests/precompiled_header/run checks it.
"""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _precompiled_header_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    deps = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps])
    context = deps.compilation_context

    header = ctx.actions.declare_file(ctx.label.name + "_precompiled.h")
    ctx.actions.expand_template(template = ctx.file.hdr, output = header, substitutions = {})
    id = ctx.actions.declare_file(ctx.label.name + "_precompiled_id.h")
    headers = [header, id]

    if toolchain.compiler == "clang":
        ctx.actions.write(id, "// not precompiled\n")
    else:
        gch = ctx.actions.declare_file(ctx.label.name + "_precompiled.h.gch")
        headers.append(gch)
        variables = cc_common.create_compile_variables(
            feature_configuration = features,
            cc_toolchain = toolchain,
            source_file = header.path,
            output_file = gch.path,
            user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts,
            include_directories = context.includes,
            quote_include_directories = context.quote_includes,
            system_include_directories = context.system_includes,
            preprocessor_defines = context.defines,
            use_pic = True,  # as --force_pic has it for every object
        )
        flags = cc_common.get_memory_inefficient_command_line(
            feature_configuration = features,
            action_name = "c++-compile",
            variables = variables,
        )
        environment = cc_common.get_environment_variables(
            feature_configuration = features,
            action_name = "c++-compile",
            variables = variables,
        )
        ctx.actions.run_shell(
            command = 'id=$1; gch=$2; shift 2; "$@" && echo "// $(sha256sum <"$gch")" >"$id"',
            arguments = [id.path, gch.path, toolchain.compiler_executable, "-x", "c++-header", "-w"] + flags,
            inputs = depset([header] + ctx.files.system_headers, transitive = [context.headers, toolchain.all_files]),
            outputs = [gch, id],
            # About 500 MB: not to be moved out of a sandbox in memory.
            execution_requirements = {"no-sandbox": "1"},
            env = environment,
            mnemonic = "CppPrecompile",
            progress_message = "Precompiling %s" % header.short_path,
        )

    own = CcInfo(compilation_context = cc_common.create_compilation_context(
        headers = depset(headers),
        quote_includes = depset([header.dirname]),
    ))
    return [
        DefaultInfo(files = depset(headers)),
        cc_common.merge_cc_infos(cc_infos = [own, deps]),
    ]

precompiled_header = rule(
    implementation = _precompiled_header_impl,
    attrs = {
        "hdr": attr.label(allow_single_file = [".h"], mandatory = True),
        "deps": attr.label_list(providers = [CcInfo]),
        "system_headers": attr.label_list(
            allow_files = True,
            doc = "what `hdr` includes and Bazel otherwise takes for granted",
        ),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
    incompatible_use_toolchain_transition = True,
)
