#!/usr/bin/env bash
# Writes a program's bill of materials as CycloneDX: sbom.sh PROGRAM DOCUMENT
#
# Modules come from Go's build information, licenses from the module cache. Fails if a module has no known license.
set -euo pipefail

program=$(realpath "$1") document=$(realpath -m "$2")
cd "$(dirname "$0")/.."
tool=$(scripts/tool.sh github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0)
# Reproducible: no serial number or timestamp. Without -version, the tool finds no licenses.
"$tool" bin -json -noserial -notimestamp -licenses -assert-licenses -output "$document" \
    -version "${VERSION-$(git describe --tags --always --dirty 2>/dev/null || echo dev)}" "$program"
python3 - "$document" <<'END'
import json, sys
# Not recognized by the tool: goose's MIT license names three owners, and this module is not in the cache.
by_hand = {"github.com/pressly/goose/v3": "MIT", "github.com/tranchehq/tranche": "Apache-2.0"}
with open(sys.argv[1]) as file:
    bill = json.load(file)
for part in [bill["metadata"]["component"], *bill["components"]]:
    if part["name"] in by_hand:
        part["licenses"] = [{"license": {"id": by_hand[part["name"]]}}]
    if not part.get("licenses"):
        sys.exit(f"sbom.sh: no license found for {part['name']}; read its LICENSE and add it to by_hand")
with open(sys.argv[1], "w") as file:
    json.dump(bill, file, indent=2)
END
