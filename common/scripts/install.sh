#!/bin/bash
# install.sh [package ...]: installs what the project needs (and the packages named) on Debian 12 or Ubuntu 24.04, as
# root or with sudo without a password; otherwise prints the line to type. Says nothing where nothing is missing.
set -euo pipefail

missing=()
# Programs count wherever they come from; libraries must be the distribution's.
command -v cmake > /dev/null || missing+=(cmake)
command -v ninja > /dev/null || missing+=(ninja-build)
command -v make > /dev/null || missing+=(make)  # what CMake takes where no preset says ninja: a stage alone
command -v c++ > /dev/null || missing+=(g++)

if ! command -v apt-get > /dev/null || ! command -v dpkg-query > /dev/null; then
    if [ ${#missing[@]} -gt 0 ]; then
        echo "This is not Debian or Ubuntu: install ${missing[*]} with its package manager, then try again." >&2
        exit 1
    fi
    exit 0  # libraries that are missing are named when CMake looks for them
fi

for package in libboost-context-dev libeigen3-dev libgtest-dev libgmock-dev libbenchmark-dev libcli11-dev nlohmann-json3-dev \
               python3-matplotlib "$@"; do
    status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2> /dev/null || true)
    [ "$status" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" = 0 ]; then
    as_root=()
elif sudo -n true 2> /dev/null; then
    as_root=(sudo -n)
else
    echo "Packages are missing, and installing them needs a password. Please run, then try again:" >&2
    echo "    sudo apt-get install ${missing[*]}" >&2
    exit 1
fi
echo "Installing ${missing[*]} ..."
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# A mirror that cannot be reached is no failure while the lists that are there suffice.
"${as_root[@]}" apt-get update > "$log" 2>&1 || true
if ! "${as_root[@]}" apt-get install -y --no-install-recommends "${missing[@]}" >> "$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "The packages could not be installed. Please run: sudo apt-get install ${missing[*]}" >&2
    exit 1
fi
