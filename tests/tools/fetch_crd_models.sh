#!/bin/sh
# Puts Python models of the Prometheus operator's and KEDA's custom resources into .cache/tools/crd-models, for tests/deploy.
# Not into the test environment: the package they need brings a pytest plugin of its own that does not load there.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
models="$root/.cache/tools/crd-models"
if [ -d "$models/cloudcoil" ]; then
    echo "tools: custom resource models present"
    exit 0
fi
mkdir -p "$models"
"${PYTHON:-python3}" -m pip install --quiet --target "$models" cloudcoil-models-keda cloudcoil-models-prometheus-operator
echo "tools: custom resource models fetched into .cache/tools/crd-models"
