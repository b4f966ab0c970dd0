{{- define "minicluster.labels" -}}
app.kubernetes.io/name: minicluster
app.kubernetes.io/component: service
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "minicluster.allLabels" -}}
{{ include "minicluster.labels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "minicluster.jobsNamespace" -}}
{{ .Values.jobs.namespace | default (printf "%s-jobs" .Release.Namespace) }}
{{- end }}

{{- define "minicluster.prefix" -}}
{{ printf "%s/services/minicluster/" (trimSuffix "/" .Values.jupyterhub.baseUrl) }}
{{- end }}
