package kubelet

import "testing"

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
