{{/* The defaults, with the values of a workload in them: into (dict "into" dict "root" $ "own" values). */}}
{{- define "kbackup.merge" -}}
{{- range $key, $value := deepCopy .root.Values.defaults }}{{ $_ := set $.into $key $value }}{{ end }}
{{- include "kbackup.overwrite" . }}
{{- end }}

{{/* Tables are merged by key, and lists named extra... are joined. All else is replaced, also by what is empty or false. */}}
{{- define "kbackup.overwrite" -}}
{{- range $key, $value := .own }}
{{- $old := get $.into $key }}
{{- if and (kindIs "map" $value) (kindIs "map" $old) }}
{{- include "kbackup.overwrite" (dict "into" $old "own" $value) }}
{{- else if and (kindIs "slice" $value) (hasPrefix "extra" $key) }}
{{- $_ := set $.into $key (concat $old $value) }}
{{- else }}
{{- $_ := set $.into $key $value }}
{{- end }}
{{- end }}
{{- end }}

{{/* The name of the service account of a workload: (dict "root" $ "name" component "of" merged values). */}}
{{- define "kbackup.account" -}}
{{- .of.serviceAccount.name | default (printf "%s-%s" (include "kbackup.fullname" .root) .name) }}
{{- end }}

{{/* The enabled workloads: name and values, each on one line, as JSON. */}}
{{- define "kbackup.enabled" -}}
{{- $all := dict "mirror-take" .Values.mirror.take "mirror-apply" .Values.mirror.apply }}
{{- range list "nightly" "follow" "expire" "copy" "verify" "drill" "page" "serve" "restore" }}
{{- $_ := set $all . (get $.Values .) }}
{{- end }}
{{- range $name, $own := $all }}
{{- if $own.enabled }}
{{ $name }}: {{ toJson $own }}
{{- end }}
{{- end }}
{{- end }}
