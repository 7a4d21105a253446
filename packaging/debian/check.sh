#!/bin/sh
# Installs the package, uses what it brings and purges it, in namespaces of its own and on a copy of the system that nobody else sees.
# As root: check.sh PACKAGE.deb
set -eu
if [ "${2-}" = "" ]; then
    exec unshare --mount --pid --net --fork --kill-child sh "$0" "$(realpath "$1")" outside
fi
if [ "$2" = outside ]; then
    mount -t tmpfs tmpfs /mnt
    mkdir /mnt/changed /mnt/work /mnt/system
    mount -t overlay overlay --options lowerdir=/,upperdir=/mnt/changed,workdir=/mnt/work /mnt/system
    mount -t proc proc /mnt/system/proc
    mount --rbind /dev /mnt/system/dev
    # The package may lie on a file system of its own.
    cp "$0" "$1" /mnt/system/
    exec chroot /mnt/system sh "/$(basename "$0")" "/$(basename "$1")" inside
fi
fail() { echo "error: $*" >&2; exit 1; }
eventually() { for _ in $(seq 100); do if "$@" >/dev/null 2>&1; then return; fi; sleep 0.1; done; fail "not within 10 s: $*"; }
is() { [ "$1" = "$2" ] || fail "$1 is not $2"; }
export DEBIAN_FRONTEND=noninteractive
ip link set lo up
mount -t tmpfs tmpfs /tmp

dpkg --install "$1"
is "$(tenure --version)" "tenure $(dpkg-deb --field "$1" Version | sed 's/-.*//')"
is "$(find /etc/systemd /run/systemd -name 'tenure*' 2>/dev/null)" ""
if pgrep -x tenure; then fail "it began by itself"; fi
is "$(stat --format '%a %U:%G' /etc/tenure/engine.env)" "600 root:root"
is "$(stat --format '%a %U:%G' /etc/tenure/serve.env)" "644 root:root"
is "$(stat --format '%a %U:%G' /etc/tenure/tokens.toml)" "640 root:tenure"
bash -n /usr/share/bash-completion/completions/tenure
for page in tenure tenure-run tenure-serve; do
    gzip --decompress --stdout "/usr/share/man/man1/$page.1.gz" | grep -q '^\.SH NAME'
done
is "$(systemd-analyze verify tenure-serve.service tenure-run@report.service tenure-run@report.timer 2>&1)" ""

is "$(TENURE_ENGINE=local:/tmp/engine tenure run report -- sh -c 'echo $TENURE_NAME')" report
# As the units run it.
code=0
(. /etc/tenure/engine.env && export TENURE_ENGINE && exec runuser -u tenure -- tenure serve) || code=$?
is "$code" 64
tenure serve token check --allow 'claim check/' >/tmp/made
sed '1,2d' /tmp/made >>/etc/tenure/tokens.toml
flags=$(sed -n 's/^TENURE_SERVE_FLAGS=//p' /etc/tenure/serve.env)
# Its flags are words.
# shellcheck disable=SC2086
(export TENURE_ENGINE=local:/tmp/served; exec setpriv --reuid tenure --regid tenure --clear-groups --no-new-privs tenure serve $flags) 2>/tmp/serve.log &
serving=$!
eventually curl --silent --fail http://127.0.0.1:7070/readyz
ask() { curl --silent --header "Authorization: Bearer $(head -1 /tmp/made)" --request "$@"; }
url=http://127.0.0.1:7070/v1/claims/$(openssl rand -hex 16)
ask PUT --json '{"name": "check/1"}' "$url" | grep '"state":"granted"' || fail "no grant"
# A token that is removed, and ExecReload.
echo >/etc/tenure/tokens.toml
kill -HUP "$serving"
refused() { [ "$(ask DELETE --output /dev/null --write-out '%{http_code}' "$url?name=check%2F1")" = 401 ]; }
eventually refused
kill -TERM "$serving"
wait "$serving" || fail "it ended with $?"

# Once more: what was changed stays.
dpkg --install --force-confold "$1"
is "$(stat --format '%a %U:%G %s' /etc/tenure/tokens.toml)" "640 root:tenure 1"
dpkg --purge tenure
if [ -e /usr/bin/tenure ] || [ -e /etc/tenure ]; then fail "it is still there"; fi
