package plugin

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// asKubeadm has the fields of kubeadm's manifest of an API server.
const asKubeadm = `{hostNetwork: true, priority: 2000001000, priorityClassName: system-node-critical, securityContext: {seccompProfile: {type: RuntimeDefault}}, containers: [{
name: kube-apiserver, image: "registry.k8s.io/kube-apiserver:v1.36.3", imagePullPolicy: IfNotPresent, command: [kube-apiserver, --advertise-address=10.0.0.1],
ports: [{containerPort: 6443, name: probe-port, protocol: TCP}], resources: {requests: {cpu: 250m}},
livenessProbe: {failureThreshold: 8, initialDelaySeconds: 10, periodSeconds: 10, timeoutSeconds: 15, httpGet: {host: 10.0.0.1, path: /livez, port: probe-port, scheme: HTTPS}},
startupProbe: {failureThreshold: 24, httpGet: {host: 10.0.0.1, path: /livez, port: probe-port, scheme: HTTPS}},
volumeMounts: [{mountPath: /etc/ssl/certs, name: ca-certs, readOnly: true}]}],
volumes: [{name: ca-certs, hostPath: {path: /etc/ssl/certs, type: DirectoryOrCreate}}]}`

// TestCheckStaticPod: what the API would not show is not run either, and the field is named.
func TestCheckStaticPod(t *testing.T) {
	for spec, want := range map[string]string{
		asKubeadm:                             "",
		"{containers: [{name: c, image: i}]}": "",
		"{restartPolicy: always, containers: [{name: c, image: i}]}":                         `invalid pod: spec.restartPolicy: Unsupported value: "always"`,
		"{containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /v}]}]}":      `spec.containers[0].volumeMounts[0].name: Not found: "v"`,
		"{serviceAccountName: a, containers: [{name: c, image: i}]}":                         "static pods may not reference serviceaccounts",
		"{volumes: [{name: v, secret: {secretName: s}}], containers: [{name: c, image: i}]}": "static pods may not reference secrets",
	} {
		var p corev1.Pod
		if err := yaml.Unmarshal([]byte("metadata: {name: p-node, namespace: default}\nspec: "+spec), &p); err != nil {
			t.Fatal(err)
		}
		err := CheckStaticPod(&p)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", spec, err, want)
		}
		if p.Spec.DNSPolicy != "" {
			t.Error("the pod is changed")
		}
	}
}
