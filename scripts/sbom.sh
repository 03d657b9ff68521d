#!/usr/bin/env bash
# Writes what a program is made of, as CycloneDX, from what Go has written into it, with each module's licence, which is
# read from the module cache: sbom.sh PROGRAM DOCUMENT. Fails if a module has none.
set -euo pipefail

program=$(realpath "$1") document=$(realpath -m "$2")
cd "$(dirname "$0")/.."
tool=$(scripts/tool.sh github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0)
# Without a serial number and a time, so that it is the same each time. Without a version it finds no licence at all.
"$tool" bin -json -noserial -notimestamp -licenses -assert-licenses -output "$document" \
    -version "${VERSION-$(git describe --tags --always --dirty 2>/dev/null || echo dev)}" "$program"
python3 - "$document" <<'END'
import json, sys
# What the tool does not recognise: goose's LICENSE is MIT's with three owners, and this module is not in the cache.
by_hand = {"github.com/pressly/goose/v3": "MIT", "github.com/tranchehq/tranche": "Apache-2.0"}
with open(sys.argv[1]) as file:
    bill = json.load(file)
for part in [bill["metadata"]["component"], *bill["components"]]:
    if part["name"] in by_hand:
        part["licenses"] = [{"license": {"id": by_hand[part["name"]]}}]
    if not part.get("licenses"):
        sys.exit(f"sbom.sh: no licence of {part['name']} was found; read its LICENSE, and name it in by_hand")
with open(sys.argv[1], "w") as file:
    json.dump(bill, file, indent=2)
END
