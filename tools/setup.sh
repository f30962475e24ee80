# Sourced by quickstart and test: what a machine needs, installed by name, and the configured build.
#
#   install_packages PACKAGE_SET...   sets: build, tests
#   configure                         into $build (default: build/ of the checkout)
#
# Debian 12 and Ubuntu 24.04 are installed on through apt-get, with sudo when not root, after saying
# what; nothing is downloaded when all is there. Elsewhere it says what is needed and goes on, for
# the build to find what it can.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${TILEFOLD_BUILD:-$root/build}

say() { printf '%s\n' "== $*"; }

# NAME or NAME:COMMAND; one with a command counts as there when the command is, wherever from.
build_packages=(g++:g++ cmake:cmake ninja-build:ninja libhdf5-dev libyaml-cpp-dev libopenblas-dev
  libcli11-dev libfmt-dev libopenmpi-dev openmpi-bin:mpirun)
tests_packages=(catch2 python3:python3)

is_installed() {
  case $1 in
    *:*) command -v "${1#*:}" >/dev/null ;;
    *) [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ] ;;
  esac
}

install_packages() {
  local missing=() package set as_root=()
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    say "no apt-get here: a C++20 compiler, CMake >= 3.22, Ninja, HDF5, yaml-cpp, OpenBLAS, fmt," \
      "CLI11, and for the tests Catch2 and Python 3 are needed (Open MPI optional); going on with" \
      "what is there"
    return
  fi
  for set in "$@"; do
    local -n packages=${set}_packages
    for package in "${packages[@]}"; do
      is_installed "$package" || missing+=("${package%%:*}")
    done
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      say "missing, and neither root nor sudo to install it: ${missing[*]}"
      say "as root: apt-get install ${missing[*]}"
      return
    fi
    as_root=(sudo)
  fi
  say "installing ${missing[*]}${as_root:+ (with sudo)}"
  as_root+=(env DEBIAN_FRONTEND=noninteractive apt-get -q)
  local install=(install -y --no-install-recommends "${missing[@]}")
  # Without package lists (a new machine), or with old ones, the first try fails.
  if ! apt-cache show "${missing[@]}" >/dev/null 2>&1 || ! "${as_root[@]}" "${install[@]}"; then
    "${as_root[@]}" update
    "${as_root[@]}" "${install[@]}"
  fi
}

configure() {
  local generator=()
  [ -f "$build/CMakeCache.txt" ] || generator=(-G Ninja)
  say "configuring $build"
  cmake -S "$root" -B "$build" "${generator[@]}" "$@"
}
