{{/* The first part of all names. Kubernetes allows a CronJob 52 characters. */}}
{{- define "kbackup.fullname" -}}
{{- $name := .Release.Name }}
{{- if not (contains .Chart.Name $name) }}{{ $name = printf "%s-%s" $name .Chart.Name }}{{ end }}
{{- .Values.fullnameOverride | default $name | trunc 38 | trimSuffix "-" }}
{{- end }}

{{/* Labels that choose the pods of a component: (dict "root" $ "name" component). */}}
{{- define "kbackup.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .name }}
{{- end }}

{{/* Labels of an object of a component. */}}
{{- define "kbackup.labels" -}}
{{ include "kbackup.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{/* Name and labels of an object of a component. */}}
{{- define "kbackup.metadata" -}}
name: {{ include "kbackup.fullname" .root }}-{{ .name }}
labels:
  {{- include "kbackup.labels" . | nindent 2 }}
{{- end }}

{{/* The reference of an image: (dict "image" values "tag" default). */}}
{{- define "kbackup.image" -}}
{{- if .image.digest }}{{ .image.repository }}@{{ .image.digest }}
{{- else }}{{ .image.repository }}:{{ .image.tag | default .tag }}{{ end }}
{{- end }}

{{/* Annotations by which a Prometheus without the operator finds a service: (dict "root" $ "port" port). */}}
{{- define "kbackup.scrape" -}}
{{- if not .root.Values.metrics.serviceMonitor.enabled }}
annotations:
  prometheus.io/scrape: "true"
  prometheus.io/port: {{ .port | quote }}
{{- end }}
{{- end }}
