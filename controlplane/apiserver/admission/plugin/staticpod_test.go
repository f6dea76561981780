package plugin

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// TestCheckStaticPod: what the API would not show is not run either, and the field is named.
func TestCheckStaticPod(t *testing.T) {
	for spec, want := range map[string]string{
		"{containers: [{name: c, image: i}]}":                                                "",
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
