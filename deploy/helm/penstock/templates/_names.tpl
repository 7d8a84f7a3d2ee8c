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
{{- $hosts = concat $hosts .Values.ops.hosts (.Values.ingress.enabled | ternary .Values.ingress.hosts list) -}}
{{- $ops := dict "bind" "0.0.0.0" "port" (int .Values.ops.port) "hosts" $hosts -}}
{{- if .Values.ops.token }}{{ $_ := set $ops "token" "${PENSTOCK_OPS_TOKEN}" }}{{ end -}}
{{- if .Values.ops.readToken }}{{ $_ := set $ops "read_token" "${PENSTOCK_OPS_READ_TOKEN}" }}{{ end -}}
{{- $_ := set $ops "extra_ports" .Values.ops.extraPorts -}}
{{ mustMergeOverwrite (deepCopy .Values.pipeline) (dict "ops" $ops) | toYaml }}
{{- end -}}

{{- /* Variable -> the Secret and the key that have its value, with those of the ops server. */ -}}
{{- define "penstock.secrets" -}}
{{- $found := deepCopy .Values.secrets -}}
{{- with .Values.ops.token }}{{ $_ := set $found "PENSTOCK_OPS_TOKEN" . }}{{ end -}}
{{- with .Values.ops.readToken }}{{ $_ := set $found "PENSTOCK_OPS_READ_TOKEN" . }}{{ end -}}
{{ $found | toYaml }}
{{- end -}}

{{- /* What the Secrets have that the pod reads, as the cluster knows them: empty without a cluster. */ -}}
{{- define "penstock.secretData" -}}
{{- $names := values .Values.secretFiles -}}
{{- range values (include "penstock.secrets" . | fromYaml) }}{{ $names = append $names .secret }}{{ end -}}
{{- range .Values.envFrom }}{{ with .secretRef }}{{ $names = append $names .name }}{{ end }}{{ end -}}
{{- range $names | uniq | sortAlpha -}}
{{ (lookup "v1" "Secret" $.Release.Namespace .).data | toJson }}
{{- end -}}
{{- end -}}

{{- define "penstock.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "penstock.name" .) }}
{{- else -}}
{{ .Values.serviceAccount.name }}
{{- end -}}
{{- end -}}
