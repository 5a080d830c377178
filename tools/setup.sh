#!/usr/bin/env bash
# Installs what kvdepot needs and is not there yet. Says what it will do before it does it; a second run does nothing.
#
#   tools/setup.sh [--test] [--dev] [--bench] [--engine] [--build-dir DIR] [--dry-run]
#
# Distribution packages (tools/packages-debian.txt) are installed as root, or through sudo where it asks for no
# password; otherwise they are listed with the command that installs them. Python packages go to DIR/venv, the engine
# to DIR/engine-venv; nothing else on the machine is changed. Exit status: 0 all needed is there, 1 something needed
# is missing, 2 wrong usage.

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build
groups=" build "
engine=no
dry_run=no

usage() {
  cat <<'TEXT'
usage: tools/setup.sh [--test] [--dev] [--bench] [--engine] [--build-dir DIR] [--dry-run]

  (nothing)    what building and the demo need
  --test       and what `make test` needs
  --dev        and compilers and tools of contributors and CI (includes --test)
  --bench      and the peers of the benchmarks
  --engine     and vLLM's CPU build with a small model: about 4 GB in DIR/engine-venv
  --build-dir  where Python environments go (default: build)
  --dry-run    only say what is missing
TEXT
}

while (($#)); do
  case $1 in
    --test) groups+="test " ;;
    --dev) groups+="test dev " ;;
    --bench) groups+="bench " ;;
    --engine) engine=yes ;;
    --build-dir) build=$(realpath -m "${2:?--build-dir needs a folder}"); shift ;;
    --dry-run) dry_run=yes ;;
    -h | --help) usage; exit 0 ;;
    *) echo "setup: unknown option $1" >&2; usage >&2; exit 2 ;;
  esac
  shift
done

# missing_packages: sets needed and wanted to the packages of the chosen groups that are not installed.
missing_packages() {
  local group package _why installed
  local -a required=() optional=()
  while read -r group package _why; do
    case $group in
      '' | '#'*) continue ;;
    esac
    [[ $groups == *" ${group%\?} "* ]] || continue
    if [[ $group == *\? ]]; then optional+=("$package"); else required+=("$package"); fi
  done <"$root/tools/packages-debian.txt"
  # dpkg-query fails when it has never heard of one of the packages; it still tells of the others.
  installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${required[@]}" "${optional[@]}" 2>/dev/null || true)
  installed=" $(sed -n 's/^installed //p' <<<"$installed" | tr '\n' ' ') "
  needed=() wanted=()
  for package in "${required[@]}"; do [[ $installed == *" $package "* ]] || needed+=("$package"); done
  for package in "${optional[@]}"; do [[ $installed == *" $package "* ]] || wanted+=("$package"); done
}

# as_root: the words to put before a command that needs root; fails where root can't be had.
as_root() {
  if [[ $(id -u) == 0 ]]; then
    echo "env"
  elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    echo "sudo -n env"
  else
    return 1
  fi
}

# apt-get with all its words in a log and one line a package here; on failure the end of the log is shown.
apt_get() {
  local log=$build/setup-apt.log
  local shown='s/^Setting up \([^ ]*\).*/setup:   \1/p; s/^Need to get/setup:   to get/p'
  mkdir -p "$build"
  if ! $root_prefix DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=600 -o Dpkg::Use-Pty=0 "$@" \
    </dev/null 2>&1 | tee -a "$log" | sed -n -u "$shown"; then
    tail -n 20 "$log" >&2
    return 1
  fi
}

install_packages() {
  local package
  echo "setup: will install with apt-get:" "${needed[@]}" "${wanted[@]}"
  apt_get update || return 1
  if ((${#needed[@]})); then
    apt_get install --no-install-recommends "${needed[@]}" || return 1
  fi
  # One by one: a release that lacks one of these must not lose the others.
  for package in "${wanted[@]}"; do
    apt_get install --no-install-recommends "$package" ||
      echo "setup: $package can't be had here; what would use it goes on without it" >&2
  done
}

setup_packages() {
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "setup: not a Debian or Ubuntu system, so nothing is checked or installed." >&2
    echo "setup: tools/packages-debian.txt lists what is needed; cmake says what it does not find." >&2
    return 0
  fi
  missing_packages
  ((${#needed[@]} + ${#wanted[@]})) || return 0
  if [[ $dry_run == no ]] && root_prefix=$(as_root); then
    # Optional packages alone are not worth a try at each run: once per list of packages.
    local tried=$build/setup-tried
    if ((${#needed[@]} == 0)) && [[ -f $tried && $(<"$tried") == "${wanted[*]}" ]]; then return 0; fi
    install_packages || echo "setup: apt-get failed, see $build/setup-apt.log" >&2
    missing_packages
    mkdir -p "$build"
    echo "${wanted[*]}" >"$tried"
  fi
  if ((${#wanted[@]})); then
    echo "setup: nice to have, not installed: ${wanted[*]}" >&2
  fi
  if ((${#needed[@]})); then
    echo "setup: missing: ${needed[*]}" >&2
    echo "setup: install them as root: apt-get install ${needed[*]}" >&2
    return 1
  fi
}

# A virtual environment counts as made when its stamp holds the requirements it was made from.
setup_venv() {
  local venv=$build/venv want
  want=$(cat "$root/tools/requirements-build.txt"; readlink -f "$(command -v python3)")
  if [[ -x $venv/bin/python && -f $venv/stamp && $(<"$venv/stamp") == "$want" ]]; then return 0; fi
  if [[ $dry_run == yes ]]; then
    echo "setup: will make a Python environment in $venv"
    return 0
  fi
  echo "setup: will make a Python environment in $venv (tools/requirements-build.txt)"
  mkdir -p "$build"
  python3 -m venv --clear "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$root/tools/requirements-build.txt"
  echo "$want" >"$venv/stamp"
}

setup_packages
setup_venv
if [[ $engine == yes ]]; then
  if [[ $dry_run == yes ]]; then
    echo "setup: would call tools/engine_env.py"
  else
    python3 "$root/tools/engine_env.py" --build-dir "$build"
  fi
fi
