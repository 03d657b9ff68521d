#!/usr/bin/env bash
# Signs a file with the secret key in the file $MINISIGN_KEY: sign.sh FILE writes FILE.minisig.
# To verify: minisign -Vm FILE -p minisign.pub
set -euo pipefail

[[ -n ${MINISIGN_KEY:-} ]] || { echo "MINISIGN_KEY is not set; set it to the file of the secret key (minisign -G makes one)" >&2; exit 2; }
exec minisign -S -s "$MINISIGN_KEY" -m "$1" -t "$(basename "$1") of $(git describe --tags --always --dirty)"
