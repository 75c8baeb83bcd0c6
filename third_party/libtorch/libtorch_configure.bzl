"""Finds a LibTorch on the machine and makes a repository of it.

Looked for in this order; the first found is taken:
  1. the attribute `home`, or the environment variable LIBTORCH_HOME: a folder
     with include/ and lib/, as the official zip unpacks to;
  2. a Python package `torch` (of the interpreter in $LIBTORCH_PYTHON, or
     python3), which carries the same two folders;
  3. the system's: /usr/local, then /usr, as Debian's libtorch-dev lays it out.

Targets:
  :c10        headers, and libc10 alone to link
  :libtorch   headers, and libtorch, libtorch_cpu and libc10 to link
  :c10d       :libtorch with the distributed backends' macros (USE_C10D_GLOO, ...)
  :cuda       :c10d with libtorch_cuda and libc10_cuda; the same as :c10d without CUDA
Settings for select(): :has_distributed, :has_gloo, :has_gloo_headers, :has_mpi,
  :has_nccl, :has_nccl_headers, :has_cuda, :abi_old (built with _GLIBCXX_USE_CXX11_ABI=0).
For load(): LIBTORCH in :defs.bzl, a struct of what was found; is_python says whether it is the one that python3
  imports.
"""

_MIN_VERSION = (2, 6)

def _exists(rctx, *parts):
    return rctx.path("/".join([str(p) for p in parts])).exists

def _python_package(rctx, python):
    """The folder of Python's package torch, or the empty string; the package is found, not imported."""
    found = rctx.execute([python, "-c", "\n".join([
        "import importlib.util",
        "s = importlib.util.find_spec('torch')",
        "print(list(s.submodule_search_locations)[0] if s and s.submodule_search_locations else '')",
    ])])
    return found.stdout.strip() if found.return_code == 0 else ""

def _is_python(rctx, cpu):
    """Whether python3, as tests run it, loads this same library: what is built with it can then be loaded there."""
    python = rctx.which("python3")
    package = _python_package(rctx, python) if python else ""
    library = package + "/lib/libtorch_cpu.so"
    return bool(package) and _exists(rctx, library) and rctx.path(library).realpath == rctx.path(cpu).realpath

def _find(rctx):
    """Returns (include folder, library folder, kind), or fails with what it tried."""
    tried = []
    home = rctx.attr.home or rctx.os.environ.get("LIBTORCH_HOME", "")
    if home:
        missing = [f for f in ["include/torch", "lib/libtorch_cpu.so"] if not _exists(rctx, home, f)]
        if missing:
            fail(("libtorch: %s=%s has no %s. Name the folder that LibTorch's zip unpacks to, or nothing, " +
                  "to take Python's package torch or the system's LibTorch (/usr/local, /usr).") %
                 ("libtorch.configure(home)" if rctx.attr.home else "LIBTORCH_HOME", home, " and no ".join(missing)))
        return home + "/include", home + "/lib", "home"

    python = rctx.os.environ.get("LIBTORCH_PYTHON", "") or rctx.which("python3")
    if python:
        package = _python_package(rctx, python)
        if package and _exists(rctx, package, "include/torch") and _exists(rctx, package, "lib/libtorch_cpu.so"):
            return package + "/include", package + "/lib", "python"
        tried.append("Python package torch of %s (%s)" % (python, package + " has no LibTorch" if package else "none"))
    else:
        tried.append("Python package torch (no python3)")

    arch = "aarch64" if rctx.os.arch == "aarch64" else "x86_64"
    for prefix in ["/usr/local", "/usr"]:
        for lib in ["lib", "lib64", "lib/%s-linux-gnu" % arch]:
            if _exists(rctx, prefix, "include/torch") and _exists(rctx, prefix, lib, "libtorch_cpu.so"):
                return prefix + "/include", prefix + "/" + lib, "system"
        tried.append("%s/include/torch with libtorch_cpu.so" % prefix)
    fail("""libtorch: no LibTorch found. Looked for, in this order:
  LIBTORCH_HOME (not set)
  %s
Set LIBTORCH_HOME to an unpacked LibTorch, or install Debian's libtorch-dev, or run tools/bazel.""" % "\n  ".join(tried))

def _version(rctx, include):
    for f in ["torch/headeronly/version.h", "torch/csrc/api/include/torch/version.h"]:
        if not _exists(rctx, include, f):
            continue
        numbers = {}
        for line in rctx.read(include + "/" + f).splitlines():
            words = line.strip().split(" ")
            if len(words) == 3 and words[0] == "#define" and words[1].startswith("TORCH_VERSION_") and words[2].isdigit():
                numbers[words[1][len("TORCH_VERSION_"):]] = int(words[2])
        if "MAJOR" in numbers:
            return (numbers["MAJOR"], numbers["MINOR"], numbers["PATCH"])
    fail("libtorch: no version.h in " + include)

def _has_symbol(rctx, library, symbol):
    """Whether the library's symbol names hold `symbol` (a grep regular expression)."""
    if not rctx.path(library).exists:
        return False
    return rctx.execute(["grep", "-q", "-a", "-m1", symbol, library]).return_code == 0

def _impl(rctx):
    include, lib, kind = _find(rctx)
    version = _version(rctx, include)
    if version[:2] < _MIN_VERSION:
        fail("libtorch: %s has LibTorch %d.%d.%d; torch_dcp needs %d.%d or later" % ((include,) + version + _MIN_VERSION))

    cpu = lib + "/libtorch_cpu.so"
    cuda = _exists(rctx, lib, "libtorch_cuda.so")
    gloo = _has_symbol(rctx, cpu, "_ZN4c10d16ProcessGroupGloo")
    mpi = _has_symbol(rctx, cpu, "_ZN4c10d15ProcessGroupMPI")
    nccl = _has_symbol(rctx, lib + "/libtorch_cuda.so", "_ZN4c10d16ProcessGroupNCCL")
    distributed = _has_symbol(rctx, cpu, "_ZN4c10d12ProcessGroup")
    old_abi = not _has_symbol(rctx, lib + "/libc10.so", "_ZN3c106DeviceC[12]ERKNSt7__cxx1112basic_string")
    gloo_headers = _exists(rctx, include, "gloo/context.h") or _exists(rctx, "/usr/include/gloo/context.h")
    all_h = rctx.read(include + "/torch/csrc/api/include/torch/all.h")
    cxx_standard = 20 if "__cplusplus < 2020" in all_h else 17

    # Folders, not their nine thousand files: one input for each folder keeps a
    # sandboxed action's set-up at a tenth of a second.
    folders = [d for d in ["torch", "ATen", "c10", "caffe2", "gloo"] if _exists(rctx, include, d)]
    for d in folders:
        rctx.symlink(include + "/" + d, "include/" + d)

    # A system library's name for the loader (libtorch.so.2.14) is not the name
    # it is linked by, and the loader finds it by itself.
    search = []
    cuda_linkopts = []
    cuda_folders = []
    nccl_headers = False
    if cuda:
        # CUDA's and NCCL's headers, which ProcessGroupNCCL.hpp includes. Those
        # under /usr/include every compiler finds by itself.
        for name, header, variables in [
            ("cuda", "cuda_runtime_api.h", ["CUDA_HOME", "CUDA_PATH"]),
            ("nccl", "nccl.h", ["NCCL_HOME", "CUDA_HOME", "CUDA_PATH"]),
        ]:
            homes = [rctx.os.environ.get(v, "") for v in variables] + ["/usr/local/cuda", "/usr"]
            home = [h for h in homes if h and _exists(rctx, h, "include", header)]
            if home and name == "nccl":
                nccl_headers = nccl
            if home and home[0] != "/usr":
                rctx.symlink(home[0] + "/include", name + "_include")
                cuda_folders.append(name + "_include")
        cuda_linkopts = ["-Wl,--no-as-needed", "-ltorch_cuda", "-lc10_cuda", "-Wl,--as-needed"]
    if lib not in ["/usr/lib", "/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"]:
        # RPATH rather than RUNPATH: it holds for what these libraries need too.
        search = ["-L" + lib, "-Wl,--disable-new-dtags", "-Wl,-rpath," + lib]
    linkopts = search + ["-ltorch", "-ltorch_cpu", "-lc10"]

    # Bazel sees a folder, not what is in it: a new LibTorch in the same place
    # changes this file, which every compile action reads.
    stamp = rctx.execute(["stat", "-L", "-c", "%n %s %Y", cpu, lib + "/libc10.so", include + "/torch"]).stdout
    rctx.file("stamp.h", "/* LibTorch %d.%d.%d\n%s*/\n" % (version + (stamp,)))

    found = struct(
        version = "%d.%d.%d" % version,
        kind = kind,
        is_python = _is_python(rctx, cpu),
        distributed = distributed,
        gloo = gloo,
        gloo_headers = gloo and gloo_headers,
        mpi = mpi,
        nccl = nccl,
        nccl_headers = nccl_headers,
        cuda = cuda,
        old_abi = old_abi,
        cxx_standard = cxx_standard,
    )
    rctx.file("defs.bzl", "LIBTORCH = %s\n" % repr(found))
    settings = {
        "has_distributed": distributed,
        "has_gloo": gloo,
        "has_gloo_headers": gloo and gloo_headers,
        "has_mpi": mpi,
        "has_nccl": nccl,
        "has_nccl_headers": nccl_headers,
        "has_cuda": cuda,
        "abi_old": old_abi,
    }
    defines = ["_GLIBCXX_USE_CXX11_ABI=0"] if old_abi else []
    c10d_defines = (["USE_DISTRIBUTED"] if distributed else []) + \
                   (["USE_C10D_GLOO"] if gloo else []) + \
                   (["USE_C10D_MPI"] if mpi else []) + \
                   (["USE_C10D_NCCL"] if nccl else [])
    rctx.template("BUILD.bazel", rctx.attr._template, {
        "%{version}": found.version,
        "%{folders}": repr(["include/" + d for d in folders]),
        "%{defines}": repr(defines),
        "%{c10d_defines}": repr(c10d_defines),
        "%{linkopts}": repr(linkopts),
        "%{c10_linkopts}": repr(search + ["-lc10"]),
        "%{cuda_linkopts}": repr(cuda_linkopts),
        "%{cuda_folders}": repr(cuda_folders),
        "%{settings}": repr(settings),
    })

libtorch_configure = repository_rule(
    implementation = _impl,
    attrs = {
        "home": attr.string(doc = "A folder with include/ and lib/; overrides LIBTORCH_HOME."),
        "_template": attr.label(default = "//third_party/libtorch:libtorch.BUILD.tpl"),
    },
    environ = ["LIBTORCH_HOME", "LIBTORCH_PYTHON", "CUDA_HOME", "CUDA_PATH", "NCCL_HOME", "PATH"],
    configure = True,
    local = True,
)

def _extension_impl(mctx):
    home = ""
    for mod in mctx.modules:
        for tag in mod.tags.configure:
            if mod.is_root or not home:
                home = tag.home
    libtorch_configure(name = "libtorch", home = home)

libtorch = module_extension(
    implementation = _extension_impl,
    tag_classes = {"configure": tag_class(attrs = {"home": attr.string()})},
)
