#!/usr/bin/env bash
# Builds the images with podman or docker:
#
#   image.sh TAG [ARCH...]     # tranche:TAG and tranche-interest:TAG; default: amd64 arm64
#
# For several architectures, podman makes a manifest list (podman manifest push sends all of it); docker, which would
# need buildx for that, tags each image TAG-ARCH. PODMAN_FLAGS are inserted before podman's command.
#
# Writes to dist/images a bill of materials per program and images.txt, which lists image IDs as
# `docker image inspect --format {{.Id}}` prints them. With MINISIGN_KEY, sign.sh signs the list.
set -euo pipefail

tag=$1
shift
[[ $# -gt 0 ]] || set -- amd64 arm64
cd "$(dirname "$0")/.."
context=$PWD/dist/image
file=deploy/image/Dockerfile
papers=$PWD/dist/images
rm -rf "$papers"
mkdir -p "$context/data" "$papers"
for arch in "$@"; do
    mkdir -p "$context/$arch"
    GOOS=linux GOARCH=$arch scripts/build.sh "$context/$arch/tranche"
    GOOS=linux GOARCH=$arch scripts/build.sh "$context/$arch/interest" ./examples/interest
    scripts/sbom.sh "$context/$arch/tranche" "$papers/tranche_linux_$arch.cdx.json"
    scripts/sbom.sh "$context/$arch/interest" "$papers/tranche-interest_linux_$arch.cdx.json"
done

# list COMMAND IMAGE...: writes the images' IDs and signs the list.
list() {
    local inspect=$1 image
    shift
    for image in "$@"; do
        echo "$($inspect image inspect --format '{{.Id}}' "$image" | sed 's/^\(sha256:\)\?/sha256:/')  $image"
    done >"$papers/images.txt"
    [[ -z ${MINISIGN_KEY:-} ]] || scripts/sign.sh "$papers/images.txt"
}
images=()

if ! command -v podman >/dev/null; then
    for arch in "$@"; do
        [[ $# -eq 1 ]] && name=$tag || name=$tag-$arch
        docker build --platform "linux/$arch" --build-arg "TARGETARCH=$arch" --file "$file" --tag "tranche:$name" "$context"
        docker build --platform "linux/$arch" --build-arg "TARGETARCH=$arch" --file "$file" --target interest \
            --tag "tranche-interest:$name" "$context"
        images+=("tranche:$name" "tranche-interest:$name")
    done
    list docker "${images[@]}"
    exit
fi

# Only Docker's format has health checks. --timestamp makes the image reproducible.
read -ra podman <<<"podman ${PODMAN_FLAGS:-}"
build=("${podman[@]}" build --quiet --isolation chroot --format docker --timestamp "$(git log -1 --format=%ct)" --file "$file")
for target in "" interest; do
    name=tranche${target:+-$target}
    if [[ $# -eq 1 ]]; then
        "${build[@]}" --platform "linux/$1" --build-arg "TARGETARCH=$1" ${target:+--target "$target"} --tag "$name:$tag" "$context"
        images+=("localhost/$name:$tag")
        continue
    fi
    "${podman[@]}" manifest rm "$name:$tag" 2>/dev/null || true
    "${podman[@]}" manifest create "$name:$tag"
    for arch in "$@"; do
        "${build[@]}" --platform "linux/$arch" --build-arg "TARGETARCH=$arch" ${target:+--target "$target"} \
            --tag "$name:$tag-$arch" "$context"
        images+=("localhost/$name:$tag-$arch")
        "${podman[@]}" manifest add "$name:$tag" "localhost/$name:$tag-$arch"
    done
done
list "${podman[*]}" "${images[@]}"
