#!/bin/sh
# Puts Helm's own Go library, behind Python, into .cache/tools/helm for tests/deploy: it lints and renders as `helm` does. There is no
# package of the program itself in the places the other tools come from. Apart from the test environment, for platforms it is not built for.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
helm="$root/.cache/tools/helm"
version=0.2.2
if [ -d "$helm/helm_python_sdk-$version.dist-info" ]; then
    echo "tools: helm present"
    exit 0
fi
rm -rf "$helm"
mkdir -p "$helm"
"${PYTHON:-python3}" -m pip install --quiet --only-binary :all: --target "$helm" "helm-python-sdk==$version"
echo "tools: helm fetched into .cache/tools/helm"
