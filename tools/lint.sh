#!/usr/bin/env bash
# Runs clang-tidy over C++ sources: those named, or those that differ from the main branch, or (on it) the last commit.
#
#   tools/lint.sh BUILD_DIR [FILE.cc...]
#
# The build folder gives the compiler's flags. Exit status 1 when there are findings.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build=${1:?which build folder}
shift
if ! command -v clang-tidy-19 >/dev/null; then
  echo "lint: clang-tidy-19 is not installed: tools/setup.sh --dev" >&2
  exit 1
fi
if (($# == 0)); then
  base=$(git merge-base HEAD origin/main 2>/dev/null || git rev-parse -q --verify 'HEAD~1' || git rev-parse HEAD)
  mapfile -t files < <(git diff --name-only --diff-filter=d "$base" -- '*.cc'
    git ls-files --others --exclude-standard '*.cc')
  set -- "${files[@]}"
fi
if (($# == 0)); then
  echo "lint: no C++ source differs"
  exit 0
fi
# GCC's flags that clang does not know are not its business.
printf '%s\n' "$@" | sort -u |
  xargs -P "$(nproc)" -n 1 clang-tidy-19 --quiet -p "$build" --warnings-as-errors='*' \
    --extra-arg=-Wno-unknown-warning-option
