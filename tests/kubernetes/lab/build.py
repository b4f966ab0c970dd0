"""Kubernetes' own programs, built once from Debian's source package; no registry has them as programs.

The oldest version that Minicluster promises to run on. What only newer ones have is not tested here.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ...lab.machines.packages import KEYS
from ...lab.machines.processes import run

VERSION = "1.20.2"
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")
CACHE_ENV = "MINICLUSTER_KUBERNETES_CACHE"
_TREE = "k8s.io/kubernetes"
_PACKAGES = ("golang-1.19-go", "golang-1.19-src", "etcd-server")
_DEBIAN = f"[signed-by={KEYS}] http://deb.debian.org/debian bookworm main\n"
_NEEDED = {"apt-get": "apt", "dpkg": "dpkg", "nice": "coreutils", "tar": "tar", "xz": "xz-utils"}
_GIVEN = re.compile(r"\+k8s:openapi-gen=")
_NOT_OPENAPI = ("sample-", "code-generator", "testdata", "/test/")


def cache() -> Path:
    """Return the folder that keeps what was built."""
    return Path(os.environ.get(CACHE_ENV) or Path.home() / ".cache" / "minicluster" / f"kubernetes-{VERSION}")


def missing() -> str:
    """Return why this machine cannot build them, for a skipped test; "" if it can, or has them."""
    if _is_complete():
        return ""
    lacking = [package for program, package in _NEEDED.items() if not shutil.which(program)]
    if lacking or os.getuid() != 0:
        return f"Kubernetes' programs are built on Debian as root, with {', '.join(_NEEDED.values())}"
    return ""


def programs() -> Path:
    """Return the folder of the programs; build them first if they are not there: about ten minutes."""
    with _locked():
        if not _is_complete():
            _unpack()
            _generate()
            for program in PROGRAMS:
                _build(program)
            shutil.copy2(_debian() / "usr/bin/etcd", _bin() / "etcd")
            _remove_sources()
    return _bin()


def main() -> None:
    """Build them and print where they are."""
    print(programs())


def _is_complete() -> bool:
    return all((_bin() / name).exists() for name in (*PROGRAMS, "etcd"))


def _bin() -> Path:
    return cache() / "bin"


def _debian() -> Path:
    return cache() / "debian"


def _path() -> Path:
    """GOPATH, as before Go had modules: the tree brings all that it needs along."""
    return cache() / "gopath"


def _tree() -> Path:
    return _path() / "src" / _TREE


@contextmanager
def _locked() -> Iterator[None]:
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# --- Debian's packages --------------------------------------------------------------------------


def _unpack() -> None:
    if _tree().is_dir():
        return
    _fetch()
    for package in _PACKAGES:
        run("dpkg", "-x", _one(f"{package}_*.deb"), _debian())
    unfinished = _tree().with_suffix(".new")
    run("rm", "-rf", unfinished)
    unfinished.mkdir(parents=True)
    run("tar", "-xf", _one("kubernetes_*.orig.tar.*"), "--strip-components=1", "-C", unfinished)
    unfinished.rename(_tree())


def _one(pattern: str) -> Path:
    found = [path for path in (cache() / "fetched").glob(pattern) if path.suffix != ".asc"]
    return max(found, key=lambda path: path.stat().st_mtime)


def _fetch() -> None:
    folder = cache() / "apt"
    for part in ("lists/partial", "cache/archives/partial"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    (cache() / "fetched").mkdir(exist_ok=True)
    (folder / "sources.list").write_text(f"deb {_DEBIAN}deb-src {_DEBIAN}")
    options = {
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        # The folders are writable only for root.
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", *(word for key, value in options.items() for word in ("-o", f"{key}={value}"))]
    run(*apt, "update")
    _in(cache() / "fetched", [*apt, "download", *_PACKAGES])
    _in(cache() / "fetched", [*apt, "source", "--download-only", "--only-source", "kubernetes"])


# --- Go -----------------------------------------------------------------------------------------


def _environment() -> dict[str, str]:
    root = _debian() / "usr/lib/go-1.19"
    return {
        **os.environ,
        "GOROOT": str(root),
        "GOPATH": str(_path()),
        "GOCACHE": str(cache() / "gocache"),
        "GO111MODULE": "off",
        "GOENV": "off",
        "GOFLAGS": "",
        "CGO_ENABLED": "0",
        "PATH": f"{root / 'bin'}:{os.environ.get('PATH', '/usr/bin:/bin')}",
    }


def _generate() -> None:
    """Generate what the API server says of its objects: the only generated file that the tree lacks."""
    if (_tree() / "pkg/generated/openapi/zz_generated.openapi.go").exists():
        return
    generator = cache() / "openapi-gen"
    _go(["build", "-o", generator, "./vendor/k8s.io/kube-openapi/cmd/openapi-gen"])
    command = [generator, "--logtostderr", "--input-dirs", ",".join(_openapi_packages())]
    command += ["--output-base", _path() / "src", "--output-package", f"{_TREE}/pkg/generated/openapi"]
    command += ["--output-file-base", "zz_generated.openapi", "--report-filename", cache() / "openapi.report"]
    command += ["--go-header-file", _tree() / "hack/boilerplate/boilerplate.generatego.txt"]
    _in(_tree(), command, _environment())


def _openapi_packages() -> list[str]:
    """Return the packages with types that belong into it, by Go's names."""
    found: set[str] = set()
    for top, prefix in (("pkg", f"{_TREE}/pkg"), ("staging/src/k8s.io", f"{_TREE}/vendor/k8s.io")):
        for path in (_tree() / top).rglob("*.go"):
            if not any(word in str(path) for word in _NOT_OPENAPI) and _GIVEN.search(path.read_text()):
                found.add(f"{prefix}/{path.parent.relative_to(_tree() / top)}")
    return sorted(found)


def _build(program: str) -> None:
    target = _bin() / program
    if target.exists():
        return
    target.parent.mkdir(exist_ok=True)
    major, minor, _ = VERSION.split(".")
    known = {"gitVersion": f"v{VERSION}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "archive"}
    places = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    words = [
        f"-X {prefix}{place}.{name}={value}"
        for place in places
        for prefix in ("", f"{_TREE}/vendor/")
        for name, value in known.items()
    ]
    unfinished = target.with_suffix(".new")
    _go(["build", "-ldflags", " ".join(["-s", "-w", *words]), "-o", unfinished, f"./cmd/{program}"])
    unfinished.rename(target)


def _go(words: Sequence[str | Path]) -> None:
    # With low priority: it takes all cores for minutes.
    _in(_tree(), ["nice", "-n", "19", "go", *words], _environment())


def _in(folder: Path, words: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> None:
    run("sh", "-c", 'cd "$0" && exec "$@"', folder, *words, environment=environment)


def _remove_sources() -> None:
    """Leave the programs only: the rest takes 3 GB."""
    for name in ("gopath", "gocache", "debian", "apt", "fetched", "openapi-gen", "openapi.report"):
        run("rm", "-rf", cache() / name)


if __name__ == "__main__":
    main()
