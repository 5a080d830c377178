#!/usr/bin/env bash
# Formats all C++ sources in place with clang-format 19; with --check only names the files that would change.
#
#   tools/format.sh [--check]

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! command -v clang-format-19 >/dev/null; then
  echo "format: clang-format-19 is not installed: tools/setup.sh --dev" >&2
  exit 1
fi
mapfile -t files < <(git ls-files --cached --others --exclude-standard '*.h' '*.cc' | sort -u)
case ${1:-} in
  '') clang-format-19 -i "${files[@]}" ;;
  --check)
    status=0
    for file in "${files[@]}"; do
      if [[ -f $file ]] && ! clang-format-19 "$file" | cmp -s - "$file"; then
        echo "$file:1: format: differs from .clang-format: make format"
        status=1
      fi
    done
    exit "$status"
    ;;
  *) echo "usage: tools/format.sh [--check]" >&2; exit 2 ;;
esac
