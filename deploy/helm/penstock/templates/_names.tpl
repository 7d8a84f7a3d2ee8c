{{- define "penstock.name" -}}
{{- if contains "penstock" .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-penstock" .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "penstock.selector" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "penstock.labels" -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- /* The pipeline file, with the ops server on all addresses of the pod. */ -}}
{{- define "penstock.pipeline" -}}
{{- $name := include "penstock.name" . -}}
{{- $namespace := printf "%s.%s" $name .Release.Namespace -}}
{{- $hosts := list $name $namespace (printf "%s.svc" $namespace) (printf "%s.svc.cluster.local" $namespace) -}}
{{- $ops := dict "bind" "0.0.0.0" "port" (int .Values.ops.port) "hosts" (concat $hosts .Values.ops.hosts) -}}
{{- $_ := set $ops "extra_ports" .Values.ops.extraPorts -}}
{{ mustMergeOverwrite (deepCopy .Values.pipeline) (dict "ops" $ops) | toYaml }}
{{- end -}}
