#!/bin/bash
# Builds the image and runs it, without a Docker daemon and without a registry: `make image-test`. Heavy, so only on request.
#
# The base is a minimal Debian made by debootstrap from this machine's own package source, given to the Dockerfile as BASE. It gets
# this machine's certificates and pip settings, which the Dockerfile knows nothing of. Needs root, buildah, debootstrap, unshare.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
work=${IMAGE_TEST_WORK:-$root/.cache/image-test}
base=localhost/kvwatch-test-base
image=localhost/kvwatch-test
user=65532:65532

export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
buildah() { command buildah --root "$work/storage" --runroot "$work/run" "$@"; }
say() { printf 'image-test: %s\n' "$*"; }
fail() { say "FAILED: $*" >&2; exit 1; }

[ "$(id -u)" = 0 ] || fail "needs root"
for tool in buildah debootstrap unshare curl; do
    type -P "$tool" >/dev/null || fail "$tool is missing (Debian packages: buildah debootstrap util-linux curl)"
done

make_base() {
    local tree=$work/base source suite
    if [ ! -e "$tree/done" ]; then
        say "making the base"
        # shellcheck disable=SC2016 # apt-get expands it
        source=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | head -n 1)
        # shellcheck source=/dev/null
        suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
        rm -rf "$tree"
        mkdir -p "$work"
        debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates "$suite" "$tree" "$source" >"$work/debootstrap.log"
        rm -rf "$tree"/var/cache/apt/archives/*.deb "$tree"/var/lib/apt/lists/*
        touch "$tree/done"
    fi
    cp /etc/ssl/certs/ca-certificates.crt "$tree/etc/ssl/certs/ca-certificates.crt"
    {
        echo "[global]"
        echo "cert = /etc/ssl/certs/ca-certificates.crt"
        [ -z "${PIP_INDEX_URL:-}" ] || echo "index-url = $PIP_INDEX_URL"
    } >"$tree/etc/pip.conf"
    # The base's own user database must not know the user: the number alone has to do.
    ! grep -q ':65532:' "$tree/etc/passwd" || fail "the base has a user 65532"
    local container
    container=$(buildah from scratch)
    buildah copy --quiet "$container" "$tree" / >/dev/null
    buildah config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$container"
    buildah commit --quiet --rm "$container" "$base" >/dev/null
}

build() {
    say "building"
    buildah build --quiet --pull-never --network host --format docker --build-arg BASE="$base" --build-arg REVISION="$(git -C "$root" rev-parse HEAD)" \
        --tag "$image" "$root" >/dev/null
}

# What the image says of itself, as JSON path $1.
said() { buildah inspect --type image --format "{{ $1 }}" "$image"; }

# Program "$@" in the image, as its user, on a root file system mounted read-only, with nothing of this machine's environment.
inside() {
    # shellcheck disable=SC2016 # the inner shell expands it
    unshare --mount --pid --fork --kill-child -- bash -c '
        tree=$1 user=$2 path=$3
        shift 3
        mount --bind "$tree" "$tree"
        mount -o remount,bind,ro "$tree"
        mount -t proc proc "$tree/proc"
        mount --rbind /dev "$tree/dev"
        exec chroot --userspec="$user" --groups= "$tree" /usr/bin/env -i PATH="$path" PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 "$@"
    ' inside "$tree" "$user" /opt/kvwatch/bin:/usr/local/bin:/usr/bin:/bin "$@"
}

# The process that a background call of `inside` became: the last of its line of children.
leaf() {
    local process=$1 child
    while child=$(pgrep --parent "$process" | head -n 1) && [ -n "$child" ]; do process=$child; done
    echo "$process"
}

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

wait_for() { # seconds, URL, text in the answer
    local _
    for _ in $(seq 1 $((10 * $1))); do
        ! curl --silent --fail --max-time 2 "$2" 2>/dev/null | grep -q "$3" || return 0
        sleep 0.1
    done
    fail "$2 never said: $3"
}

make_base
build

[ "$(said .OCIv1.Config.User)" = "$user" ] || fail "user is $(said .OCIv1.Config.User)"
[ "$(said .OCIv1.Config.Entrypoint)" = "[kvwatch]" ] || fail "entry point is $(said .OCIv1.Config.Entrypoint)"
[ "$(said .OCIv1.Config.Cmd)" = "[run]" ] || fail "command is $(said .OCIv1.Config.Cmd)"
said .Docker.Config.Healthcheck | grep -q 'kvwatch.daemon.healthcheck' || fail "health check is $(said .Docker.Config.Healthcheck)"
said .OCIv1.Config.Labels | grep -q 'org.opencontainers.image.licenses:Apache-2.0' || fail "labels are $(said .OCIv1.Config.Labels)"

container=$(buildah from --pull-never "$image")
tree=$(buildah mount "$container")
children=()
finish() {
    local child
    for child in "${children[@]}"; do kill -TERM "$(leaf "$child")" 2>/dev/null || true; done
    wait || true
    buildah umount "$container" >/dev/null
    buildah rm "$container" >/dev/null
}
trap finish EXIT
mkdir -p "$tree/proc" "$tree/dev"

[ "$(inside id -u)" = 65532 ] || fail "does not run as 65532"
! inside touch /opt/kvwatch/x 2>/dev/null || fail "the root file system can be written"
! inside pip --version >/dev/null 2>&1 || fail "pip was shipped"
say "$(inside kvwatch --version)"

engine=$(free_port) web=$(free_port)
inside python -m kvwatch.simulator --port "$engine" --num-gpu-blocks 1500 --max-num-seqs 64 --concurrency 48 >"$work/simulator.log" 2>&1 &
children+=($!)
wait_for 20 "http://127.0.0.1:$engine/metrics" vllm:num_requests_running
inside kvwatch run "http://127.0.0.1:$engine/metrics" --web.listen-address="127.0.0.1:$web" >"$work/kvwatch.daemon.logging" 2>&1 &
kvwatch=$!
children+=("$kvwatch")
wait_for 20 "http://127.0.0.1:$web/-/healthy" Healthy
wait_for 30 "http://127.0.0.1:$web/metrics" '^kvwatch_target_up{.*} 1.0'
wait_for 60 "http://127.0.0.1:$web/metrics" '^kvwatch_state{.*state="kv_bound".*} 1.0'
inside env KVWATCH_WEB__LISTEN_ADDRESS="127.0.0.1:$web" python -m kvwatch.daemon.healthcheck || fail "its own health check says no"
say "healthy, watches the simulator, says kv_bound; $(curl -s "http://127.0.0.1:$web/metrics" | awk '/^process_resident_memory_bytes/ {printf "%.0f MiB resident", $2 / 1048576}')"

# As the kubelet does: to the process itself, which is the first of its process namespace.
before=$(date +%s%N)
kill -TERM "$(leaf "$kvwatch")"
code=0
wait "$kvwatch" || code=$?
after=$(date +%s%N)
[ "$code" = 0 ] || fail "SIGTERM ended it with $code: $(tail -n 3 "$work/kvwatch.daemon.logging")"
say "SIGTERM ended it with 0 after $(((after - before) / 1000000)) ms"
! grep -qi 'read-only file system\|traceback' "$work/kvwatch.daemon.logging" || fail "it tripped: $(grep -i -m 1 'read-only\|traceback' "$work/kvwatch.daemon.logging")"

say "image $(du -sm "$tree" | cut -f 1) MB, of which kvwatch and its libraries $(du -sm "$tree/opt/kvwatch" | cut -f 1) MB; the base $(du -sm --exclude=done "$work/base" | cut -f 1) MB"
say "passed"
