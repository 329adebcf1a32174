#!/bin/sh
# Puts axe-core, which the accessibility test of the status page runs in the browser, into .cache/axe. Needs npm.
set -eu
cd "$(dirname "$0")/../.."
npm install --no-save --no-audit --no-fund --ignore-scripts --prefix .cache/axe axe-core@4.10.3
