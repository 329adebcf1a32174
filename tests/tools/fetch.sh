#!/bin/sh
# Puts prometheus, promtool, alertmanager and amtool into .cache/tools/ for the tests, from the distribution's own packages.
# The packages are only downloaded and unpacked: no service is started. Needs apt-get and dpkg-deb, and once the right to write
# two templates under /usr/share, where Debian's Alertmanager insists on finding them.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
tools="$root/.cache/tools"
templates=/usr/share/prometheus/alertmanager
names="prometheus promtool alertmanager amtool"

missing=""
for name in $names; do
    command -v "$name" >/dev/null 2>&1 || [ -x "$tools/$name" ] || missing="$missing $name"
done
command -v alertmanager >/dev/null 2>&1 || [ -e "$templates/email.tmpl" ] || missing="$missing $templates"
if [ -z "$missing" ]; then
    echo "tools: all present ($names)"
    exit 0
fi

for needed in apt-get dpkg-deb; do
    command -v "$needed" >/dev/null 2>&1 || { echo "tools: $needed is missing here; put$missing on PATH yourself" >&2; exit 1; }
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
# apt's download method drops to the user _apt, which must be able to write here.
chmod 755 "$work"
apt-get -qq -o APT::Sandbox::User=root download prometheus prometheus-alertmanager
mkdir -p "$tools"
for package in *.deb; do
    dpkg-deb -x "$package" unpacked
done
cp unpacked/usr/bin/prometheus unpacked/usr/bin/promtool unpacked/usr/bin/amtool "$tools/"
# Debian renames this one, so that it does not clash with other packages.
cp unpacked/usr/bin/prometheus-alertmanager "$tools/alertmanager"
if [ ! -e "$templates/email.tmpl" ]; then
    { mkdir -p "$templates" && cp "unpacked$templates/"*.tmpl "$templates/"; } || {
        echo "tools: cannot write $templates; run this once as root, or install prometheus-alertmanager" >&2
        exit 1
    }
fi
echo "tools: fetched into .cache/tools: $(ls "$tools" | tr '\n' ' ')"
