{{/*
The template of a pod that runs kbackup: (dict
  "root" $  "name" component  "of" merged values  "args" list  "spark" true if the command uses Spark
  "job" true for a job  "metrics" true if it writes a metrics file  "mirror" true for a half of a mirror
  "port" the name and number of a port, as (dict "name" name "number" number)  "probes" text
  "metricsPort" the number of another port, where it serves its metrics)
*/}}
{{- define "kbackup.pod" -}}
{{- $values := .root.Values }}
{{- $fullname := include "kbackup.fullname" .root }}
{{- $executors := int (.of.executors | default 0) }}
metadata:
  labels:
    {{- include "kbackup.selector" . | nindent 4 }}
    {{- if $executors }}
    kbackup/spark: driver
    {{- end }}
    {{- with .of.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- if or .of.podAnnotations (not .job) }}
  annotations:
    {{- if not .job }}
    checksum/config: {{ print $values.config $values.mirror.properties | sha256sum }}
    {{- end }}
    {{- with .of.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
spec:
  serviceAccountName: {{ include "kbackup.account" . }}
  automountServiceAccountToken: {{ gt $executors 0 }}
  enableServiceLinks: false
  {{- if .job }}
  restartPolicy: Never
  {{- end }}
  terminationGracePeriodSeconds: {{ int .of.terminationGracePeriodSeconds }}
  {{- with $values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with include "kbackup.placement" .of | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- $beside := and .metrics (eq $values.metrics.volume.type "ReadWriteOnce") (not (hasKey .of.affinity "podAffinity")) }}
  {{- if or .of.affinity $beside }}
  affinity:
    {{- with .of.affinity }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- if $beside }}
    podAffinity: # one node at a time may mount the volume of the metrics files
      requiredDuringSchedulingIgnoredDuringExecution:
        - topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "kbackup.selector" (dict "root" .root "name" "metrics") | nindent 14 }}
    {{- end }}
  {{- end }}
  securityContext:
    {{- toYaml .of.podSecurityContext | nindent 4 }}
  containers:
    - name: kbackup
      image: {{ include "kbackup.image" (dict "image" $values.image "tag" .root.Chart.AppVersion) }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      args:
        {{- toYaml (concat .args .of.options) | nindent 8 }}
      env:
        - {name: KBACKUP_CONFIG, value: /etc/kbackup/kbackup.toml}
        {{- if $executors }}
        {{- include "kbackup.driver.env" . | nindent 8 }}
        {{- else if .spark }}
        - {name: KBACKUP_SPARK_MASTER, value: "local[{{ int .of.cores }}]"} # not *: those are all cores of the node
        {{- end }}
        {{- if and .mirror $values.mirror.archive }}
        - {name: KBACKUP_ARCHIVE, value: {{ $values.mirror.archive | quote }}}
        {{- end }}
        {{- range $name, $value := .of.env }}
        - {name: {{ $name }}, value: {{ $value | quote }}}
        {{- end }}
        {{- with .of.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with .of.existingSecret }}
      envFrom:
        - secretRef: {name: {{ . }}}
      {{- end }}
      {{- if or .port $executors }}
      ports:
        {{- with .port }}
        - {name: {{ .name }}, containerPort: {{ .number }}}
        {{- end }}
        {{- with .metricsPort }}
        - {name: metrics, containerPort: {{ . }}}
        {{- end }}
        {{- if $executors }}
        - {name: driver, containerPort: 7078}
        - {name: blocks, containerPort: 7079}
        {{- end }}
      {{- end }}
      {{- with .probes }}
      {{- . | nindent 6 }}
      {{- end }}
      resources:
        {{- toYaml .of.resources | nindent 8 }}
      securityContext:
        {{- toYaml .of.securityContext | nindent 8 }}
      volumeMounts:
        - {name: config, mountPath: /etc/kbackup, readOnly: true}
        - {name: tmp, mountPath: /tmp}
        {{- if .metrics }}
        - {name: metrics, mountPath: /metrics}
        {{- end }}
        {{- if .mirror }}
        - {name: mirror, mountPath: /etc/mirror, readOnly: true}
        {{- end }}
        {{- if $executors }}
        - {name: spark, mountPath: /etc/kbackup-spark, readOnly: true}
        {{- end }}
        {{- with .of.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: config
      configMap: {name: {{ $fullname }}-config}
    - name: tmp
      emptyDir: {}
    {{- if .metrics }}
    - name: metrics
      {{- if eq $values.metrics.volume.type "emptyDir" }}
      emptyDir: {}
      {{- else }}
      persistentVolumeClaim: {claimName: {{ include "kbackup.claim" .root }}}
      {{- end }}
    {{- end }}
    {{- if .mirror }}
    - name: mirror
      configMap: {name: {{ $fullname }}-mirror}
    {{- end }}
    {{- if $executors }}
    - name: spark
      configMap: {name: {{ $fullname }}-driver}
    {{- end }}
    {{- with .of.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{/* Probes of a server, by the name of its port. */}}
{{- define "kbackup.listens" -}}
startupProbe:
  tcpSocket: {port: {{ . }}}
  periodSeconds: 2
  failureThreshold: 60
readinessProbe:
  tcpSocket: {port: {{ . }}}
livenessProbe:
  tcpSocket: {port: {{ . }}}
  periodSeconds: 30
{{- end }}

{{/* The claim of the metrics files. */}}
{{- define "kbackup.claim" -}}
{{- .Values.metrics.volume.existingClaim | default (printf "%s-metrics" (include "kbackup.fullname" .)) }}
{{- end }}

{{/* Variables of a pod that is Spark's driver, in client mode. */}}
{{- define "kbackup.driver.env" -}}
{{- $values := .root.Values }}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- name: KBACKUP_SPARK_MASTER
  value: k8s://https://kubernetes.default.svc
- name: KBACKUP_SPARK_CONF
  value: >-
    {"spark.kubernetes.namespace" = "{{ .root.Release.Namespace }}",
    "spark.kubernetes.container.image" = "{{ include "kbackup.image" (dict "image" $values.image "tag" .root.Chart.AppVersion) }}",
    "spark.kubernetes.container.image.pullPolicy" = "{{ $values.image.pullPolicy }}",
    "spark.kubernetes.driver.pod.name" = "${env:POD_NAME}",
    "spark.kubernetes.driver.ownPersistentVolumeClaim" = "false",
    "spark.kubernetes.driver.service.deleteOnTermination" = "false",
    "spark.kubernetes.executor.podTemplateFile" = "/etc/kbackup-spark/{{ .name }}.yaml",
    "spark.kubernetes.executor.podTemplateContainerName" = "executor",
    "spark.driver.host" = "${env:POD_IP}",
    "spark.driver.bindAddress" = "0.0.0.0",
    "spark.driver.port" = "7078",
    "spark.blockManager.port" = "7079",
    "spark.executor.instances" = "{{ int .of.executors }}",
    "spark.executor.cores" = "{{ int $values.executor.cores }}",
    {{- with $values.executor.cpuRequest }}
    "spark.kubernetes.executor.request.cores" = "{{ . }}",
    {{- end }}
    "spark.executor.memory" = "{{ $values.executor.memory }}",
    "spark.executor.memoryOverhead" = "{{ $values.executor.memoryOverhead }}",
    "spark.python.daemon.module" = "kbackup.spark.daemon",
    "spark.authenticate" = "true",
    "spark.network.crypto.enabled" = "true",
    "spark.io.encryption.enabled" = "true"}
{{- end }}

{{/* Where pods of a workload run: merged values. */}}
{{- define "kbackup.placement" -}}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The template of a workload's executors, which Spark completes: (dict "root" $ "name" component "of" merged values). */}}
{{- define "kbackup.executor" -}}
{{- $of := .of }}
apiVersion: v1
kind: Pod
metadata:
  labels:
    {{- include "kbackup.selector" (dict "root" .root "name" "executor") | nindent 4 }}
    {{- with $of.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $of.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "kbackup.account" . }} # for the identity of a cloud
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with .root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with include "kbackup.placement" $of | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with $of.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- toYaml $of.podSecurityContext | nindent 4 }}
  containers:
    - name: executor
      {{- with $of.extraEnv }}
      env:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        {{- toYaml $of.securityContext | nindent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        {{- with $of.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: tmp
      emptyDir: {}
    {{- with $of.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}
