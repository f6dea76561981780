package kubelet

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// A manifest of a static pod is refused, or makes a pod that has what the API
// server would have given it.
func FuzzManifest(f *testing.F) {
	f.Add([]byte("kind: Pod\napiVersion: v1\nmetadata: {name: a}\nspec: {containers: [{name: c, image: i, livenessProbe: {httpGet: {port: 1}}, lifecycle: {}}], volumes: [{name: v, hostPath: {path: /}}, {name: w}]}\n"))
	f.Add([]byte("kind: Pod\nmetadata: {name: a, uid: u, namespace: n}\nspec: {initContainers: [{}], containers: [{resources: {limits: {cpu: 1}}, ports: [{}]}], securityContext: null}\n"))
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := decodeStatic(data, "/p", "n")
		if err != nil {
			return
		}
		if p.Name == "" || p.Namespace == "" || p.UID == "" || p.Spec.NodeName != "n" || p.Spec.RestartPolicy == "" || p.Spec.TerminationGracePeriodSeconds == nil {
			t.Fatalf("%q makes %+v", data, p)
		}
	})
}

// Of what Secrets hold as a configuration of Docker's, an image's pull gets only
// what is filed under its registry.
func FuzzCredentials(f *testing.F) {
	f.Add("registry.example.com/a/b:v1", false, []byte(`{"auths":{"https://registry.example.com/v1/":{"auth":"dTpw"},"*.example.com":{"username":"u","password":"p"},"evil.test":{"auth":"%"}}}`))
	f.Add("busybox@sha256:00", true, []byte(`{"https://index.docker.io/v1/":{"identitytoken":"t"},"[":{},"":{}}`))
	f.Add("localhost:5000/x", false, []byte(`{"auths":null}`))
	f.Fuzz(func(t *testing.T, image string, old bool, config []byte) {
		key := corev1.DockerConfigJsonKey
		if old {
			key = corev1.DockerConfigKey
		}
		for _, c := range credentials(image, []*corev1.Secret{{Data: map[string][]byte{key: config}}}) {
			host, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(c.ServerAddress, "https://"), "http://"), "/")
			if host != "" && !strings.ContainsAny(host, `*?[\`) && host != "index.docker.io" && host != "docker.io" && !strings.HasPrefix(image, host) {
				t.Fatalf("%q gets what is filed under %q", image, c.ServerAddress)
			}
		}
	})
}
