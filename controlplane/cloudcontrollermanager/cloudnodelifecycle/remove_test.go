package cloudnodelifecycle

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"

	"knarr/internal/apitest"
)

// TestStaleCache: what the cache has is not deleted when the server has something
// else by now.
func TestStaleCache(t *testing.T) {
	s, stop := apitest.New(t)
	defer stop()
	client := s.Client(t)
	r := &reconciler{client: client, events: record.NewFakeRecorder(10)}
	for name, change := range map[string]func(asked *corev1.Node){
		"anew":        func(n *corev1.Node) { n.UID = "another" },
		"provider-id": func(n *corev1.Node) { n.Spec.ProviderID = "vendor://1" },
		"unchanged":   func(*corev1.Node) {},
	} {
		live, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		asked := live.DeepCopy()
		change(asked)
		if err := r.remove(t.Context(), asked); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		_, err = client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if gone := err != nil; gone != (name == "unchanged") {
			t.Errorf("%s: gone %t", name, gone)
		}
	}
}
