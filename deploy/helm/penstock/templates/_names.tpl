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

{{- /* All brokers by their own names. */}}
{{- define "penstock.bootstrap" -}}
{{- $hosts := list -}}
{{- range $index := untilStep (int .Values.firstId) (int (add .Values.firstId .Values.replicas)) 1 -}}
{{- $hosts = append $hosts (printf "%s-%d.%s-brokers.%s:9092" (include "penstock.name" $) $index (include "penstock.name" $) (include "penstock.domain" $)) -}}
{{- end -}}
{{ join "," $hosts }}
{{- end }}

{{- define "penstock.secretName" -}}
{{ .Values.clusterSecret.existing | default (printf "%s-cluster" (include "penstock.name" .)) }}
{{- end }}

{{- /* The Secret of certificates for a dict of root, of what it is for, and of the name that the values give it. */}}
{{- define "penstock.tlsSecret" -}}
{{ .given | default (printf "%s-%s-tls" (include "penstock.name" .root) .for) }}
{{- end }}
{{- define "penstock.clientsTls" -}}
{{ include "penstock.tlsSecret" (dict "root" . "for" "clients" "given" .Values.tls.secret) }}
{{- end }}
{{- define "penstock.brokersTls" -}}
{{ include "penstock.tlsSecret" (dict "root" . "for" "brokers" "given" .Values.tls.brokersSecret) }}
{{- end }}
{{- define "penstock.etcdTls" -}}
{{ include "penstock.tlsSecret" (dict "root" . "for" "etcd" "given" .Values.etcd.tlsSecret) }}
{{- end }}

{{- /* What must be there before a broker can be safe, each with the way to it. */}}
{{- define "penstock.checkSecrets" -}}
{{- $way := "name a Secret with tls.crt, tls.key and ca.crt, or have cert-manager make it (tls.certManager.enabled=true); README.md, \"Certificates\", has the commands" -}}
{{- if not .Values.tls.certManager.enabled }}
{{- if not .Values.tls.secret }}{{ fail (printf "tls.secret is not set, and clients connect by TLS: %s" $way) }}{{ end }}
{{- if not .Values.tls.brokersSecret }}{{ fail (printf "tls.brokersSecret is not set, and brokers connect to each other by TLS: %s" $way) }}{{ end }}
{{- end }}
{{- if and .Values.etcd.endpoints (not .Values.etcd.tlsSecret) }}
{{- fail "etcd.tlsSecret is not set, and brokers that ask for logins reach etcd over TLS alone: name the Secret with ca.crt, tls.crt and tls.key for your etcd" }}
{{- end }}
{{- if and (not .Values.etcd.endpoints) (not .Values.etcd.tlsSecret) (not .Values.tls.certManager.enabled) }}
{{- fail (printf "etcd.tlsSecret is not set, and brokers connect to etcd by TLS: %s" $way) }}
{{- end }}
{{- if not .Values.admin.secret }}
{{- fail "admin.secret is not set, and clients log in: name a Secret with the password of user admin under the key `password`; README.md, \"Users\", has the command" }}
{{- end }}
{{- if hasKey .Values.settings "listeners" }}
{{- fail "settings.listeners would take the place of listeners with TLS and logins: add yours to the value listeners" }}
{{- end }}
{{- end }}

{{- /* As the broker reads it; $(...) are the pod's variables. */}}
{{- define "penstock.listeners" -}}
{{- $own := printf "$(POD_NAME).%s-brokers.%s" (include "penstock.name" .) (include "penstock.domain" .) -}}
{{- $tls := dict "certificate" "/etc/penstock-tls/clients/tls.crt" "key" "/etc/penstock-tls/clients/tls.key" -}}
{{- $kafka := dict "protocol" "kafka" "address" "0.0.0.0:9092" "advertised" (.Values.advertised | default (printf "%s:9092" $own)) "auth" (list "scram") "tls" $tls -}}
{{- $http := dict "protocol" "http" "address" "0.0.0.0:8080" "auth" (list "basic" "key") "tls" $tls -}}
{{- $internal := dict "protocol" "internal" "address" "0.0.0.0:9094" "advertised" (printf "%s:9094" $own) -}}
{{- $metrics := dict "protocol" "metrics" "address" "0.0.0.0:9090" "auth" (list "basic" "key") "tls" $tls -}}
{{ concat (list $kafka $http $internal) (ternary (list $metrics) list .Values.serviceMonitor.enabled) .Values.listeners | toJson }}
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
etcds://{{ join "," $hosts }}{{ with .Values.etcd.prefix }}/{{ trimPrefix "/" . }}{{ end }}
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
