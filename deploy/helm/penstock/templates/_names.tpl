{{- define "penstock.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "penstock.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "penstock.labels" -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "penstock.domain" -}}
{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end }}

{{- define "penstock.secretName" -}}
{{ .Values.clusterSecret.existing | default (printf "%s-cluster" (include "penstock.name" .)) }}
{{- end }}

{{- define "penstock.etcdMember" -}}
{{ printf "%s-etcd-%d.%s-etcd.%s" (include "penstock.name" .root) .index (include "penstock.name" .root) (include "penstock.domain" .root) }}
{{- end }}

{{- define "penstock.store" -}}
{{- $hosts := .Values.etcd.endpoints -}}
{{- if not $hosts -}}
{{- range $index := until (int .Values.etcd.bundled.replicas) -}}
{{- $hosts = append $hosts (printf "%s:2379" (include "penstock.etcdMember" (dict "root" $ "index" $index))) -}}
{{- end -}}
{{- end -}}
{{ ternary "etcds" "etcd" (not (empty .Values.etcd.tlsSecret)) }}://{{ join "," $hosts }}{{ with .Values.etcd.prefix }}/{{ trimPrefix "/" . }}{{ end }}
{{- end }}

{{- define "penstock.etcdSelector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}-etcd
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* Pods with these labels on nodes of their own: a dict of root and of selector, the name of what makes the labels. */}}
{{- define "penstock.apart" -}}
{{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" (include .selector .root | fromYaml)) -}}
{{- if eq .root.Values.antiAffinity "required" }}
podAntiAffinity:
  requiredDuringSchedulingIgnoredDuringExecution: {{- toYaml (list $term) | nindent 4 }}
{{- else if eq .root.Values.antiAffinity "preferred" }}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution: {{- toYaml (list (dict "weight" 100 "podAffinityTerm" $term)) | nindent 4 }}
{{- end }}
{{- end }}

{{- define "penstock.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "penstock.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}
