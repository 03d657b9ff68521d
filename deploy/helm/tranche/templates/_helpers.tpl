{{- define "tranche.name" -}}
{{- if contains "tranche" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-tranche" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "tranche.selector" -}}
app.kubernetes.io/name: tranche
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tranche.labels" -}}
{{ include "tranche.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "tranche.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "tranche.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "tranche.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* Host names of the service inside the cluster, and those of settings. */}}
{{- define "tranche.hosts" -}}
{{- $name := include "tranche.name" . }}{{ $full := printf "%s.%s" $name .Release.Namespace }}
{{- list $name $full (printf "%s.svc" $full) (printf "%s.svc.%s" $full .Values.clusterDomain) (get .Values.settings "TRANCHE_ALLOW_HOST") | compact | join "," }}
{{- end }}

{{- define "tranche.scheduling" -}}
{{- range $name, $value := pick .Values "nodeSelector" "affinity" "tolerations" }}{{ if $value }}
{{ $name }}: {{- toYaml $value | nindent 2 }}
{{- end }}{{ end }}
{{- end }}
