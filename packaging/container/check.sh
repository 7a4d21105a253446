#!/bin/sh
# Runs the file system of the image, read-only and as its user, in namespaces of its own with a Redis beside it, and takes a lock.
# As root: check.sh ROOTFS
set -eu
if [ "${2-}" != inside ]; then
    exec unshare --mount --mount-proc --pid --net --ipc --fork --kill-child sh "$0" "$1" inside
fi
fail() { echo "error: $*" >&2; cat /mnt/serve.log >&2; exit 1; }
eventually() { for _ in $(seq 100); do if "$@" >/dev/null 2>&1; then return; fi; sleep 0.1; done; fail "not within 10 s: $*"; }

ip link set lo up
mount -t tmpfs tmpfs /mnt
cp --archive "$1" /mnt/rootfs
# As Kubernetes mounts a secret for a group: root's, and read by that group.
mkdir --parents /mnt/rootfs/etc/tenure
/mnt/rootfs/usr/bin/tenure serve token check --allow 'claim check/' >/mnt/made
sed '1,2d' /mnt/made >/mnt/rootfs/etc/tenure/tokens.toml
chown 0:65532 /mnt/rootfs/etc/tenure/tokens.toml
chmod 440 /mnt/rootfs/etc/tenure/tokens.toml
mount --bind /mnt/rootfs /mnt/rootfs
mount --options remount,bind,ro /mnt/rootfs
if touch /mnt/rootfs/file 2>/dev/null; then fail "it is not read-only"; fi

redis-server --bind 127.0.0.1 --port 6379 --save '' --dir /mnt >/mnt/redis.log &
eventually redis-cli ping
in_image() { TENURE_ENGINE=redis://127.0.0.1 exec chroot --userspec=65532:65532 --groups= /mnt/rootfs /usr/bin/tenure "$@"; }
(in_image serve --listen 0.0.0.0:7070 --tokens /etc/tenure/tokens.toml --drain 1s 2>/mnt/serve.log) &
serving=$!
eventually curl --silent --fail http://127.0.0.1:7070/healthz
eventually curl --silent --fail http://127.0.0.1:7070/readyz
grep -q '^Uid:[[:space:]]65532' "/proc/$(pgrep -x tenure)/status" || fail "it is not its user's"
ask() { curl --silent --header "Authorization: Bearer $(head -1 /mnt/made)" --request "$@"; }
url=http://127.0.0.1:7070/v1/claims/$(openssl rand -hex 16)
ask PUT --json '{"name": "check/1"}' "$url" | grep '"state":"granted"' || fail "no grant"
ask DELETE "$url?name=check%2F1" | grep '"released":true' || fail "no release"
[ "$(curl --silent --output /dev/null --write-out '%{http_code}' --request PUT --json '{"name": "check/1"}' "$url")" = 401 ] ||
    fail "no token is needed"
kill -TERM "$serving"
wait "$serving" || fail "it ended with $?"
(in_image run check/2 -- /usr/bin/tenure --version) || fail "tenure run"
