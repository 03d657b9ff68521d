#!/usr/bin/env bash
# Writes what a program is made of, as CycloneDX, from what Go has written into it: sbom.sh PROGRAM DOCUMENT
set -euo pipefail

program=$(realpath "$1") document=$(realpath -m "$2")
tool=$("$(dirname "$0")/tool.sh" github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0)
# Without a serial number and a time, so that it is the same each time.
exec "$tool" bin -json -noserial -output "$document" "$program"
