#!/bin/sh
# What both images do with their base: Python where it is missing, a user of one's own, an owned folder.
#   base.sh USER HOME [DEBIAN-PACKAGES]
set -eu

user=$1 home=$2 packages=${3:-}

python3 -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || packages="$packages python3 python3-venv"
if [ -n "${packages# }" ]; then
    command -v apt-get >/dev/null || {
        echo "The base image lacks $packages (of python3: 3.11 or newer, with venv), and has no apt-get to install it." >&2
        exit 1
    }
    apt-get update
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ca-certificates $packages
    rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb /var/log/apt /var/log/dpkg.log
fi
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "The base image has $(python3 --version); Minicluster needs Python 3.11 or newer: name another BASE_IMAGE." >&2
    exit 1
}

# Some bases (Ubuntu 24.04) have a user 1000 already.
taken=$(getent passwd 1000 | cut -d: -f1)
[ -z "$taken" ] || userdel "$taken"
taken=$(getent group 1000 | cut -d: -f1)
[ -z "$taken" ] || groupdel "$taken"
groupadd --gid 1000 "$user"
useradd --uid 1000 --gid 1000 --home-dir "$home" --no-create-home --shell /bin/bash "$user"
install -d -o "$user" -g "$user" -m 0700 "$home"
