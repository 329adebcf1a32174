{{- define "kvwatch.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 52 | trimSuffix "-" }}
{{- end }}

{{/* Name of the objects. 52 characters at most: a suffix, an ordinal and a hash of the controller must fit behind it. */}}
{{- define "kvwatch.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains (include "kvwatch.name" .) .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "kvwatch.name" .) | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Chosen by these, so they never change. */}}
{{- define "kvwatch.selectorLabels" -}}
app.kubernetes.io/name: {{ include "kvwatch.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: watchdog
{{- end }}

{{/* Labels of an object, from (list . COMPONENT LABELS): what is said for that object goes before what is said for all. */}}
{{- define "kvwatch.labels" -}}
{{- $root := index . 0 -}}
{{- $own := dict
  "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-")
  "app.kubernetes.io/name" (include "kvwatch.name" $root)
  "app.kubernetes.io/instance" $root.Release.Name
  "app.kubernetes.io/component" (index . 1)
  "app.kubernetes.io/version" $root.Chart.AppVersion
  "app.kubernetes.io/part-of" "kvwatch"
  "app.kubernetes.io/managed-by" $root.Release.Service -}}
{{ toYaml (merge (dict) (index . 2) $own $root.Values.commonLabels) }}
{{- end }}

{{/* Labels of the pods to watch. The default stands here: in values.yaml it would be merged with the labels of a user. */}}
{{- define "kvwatch.vllmSelector" -}}
{{ toYaml (default (dict "app.kubernetes.io/name" "vllm") .Values.discovery.selector) }}
{{- end }}

{{- define "kvwatch.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- end }}

{{/* kvwatch.yaml: the values, with the headless Service before their targets. */}}
{{- define "kvwatch.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- if .Values.discovery.create -}}
{{- $name := printf "%s-vllm" (include "kvwatch.fullname" .) -}}
{{- $url := printf "dns+%s://%s:%v/metrics" .Values.discovery.scheme $name .Values.discovery.port -}}
{{- $_ := set $config "targets" (prepend ($config.targets | default list) (dict "name" "vllm" "url" $url)) -}}
{{- if not (($config.discovery | default dict).refresh) -}}
{{- $_ := set $config "discovery" (merge (dict "refresh" "15s") ($config.discovery | default dict)) -}}
{{- end -}}
{{- end -}}
{{ toYaml $config }}
{{- end }}
