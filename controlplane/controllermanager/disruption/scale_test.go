package disruption

import (
	"net/http"
	"net/http/httptest"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// TestNamesOfOwners: what a pod says of its owner leads to no path of its own making.
func TestNamesOfOwners(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("%s is read", r.URL) }))
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	none := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	s := &scales{client: client, sets: none, rcs: none, deployments: none, stateful: none}
	for _, ref := range []metav1.OwnerReference{
		{APIVersion: "apps/v1", Kind: "Deployment", Name: "../../other/deployments/x"},
		{APIVersion: "apps/v1", Kind: "Deployment", Name: ".."},
		{APIVersion: "../v1", Kind: "Deployment", Name: "x"},
		{APIVersion: "apps/..", Kind: "Deployment", Name: "x"},
	} {
		if n, uid, err := s.of(t.Context(), "mine", &ref); n != 0 || uid != "" {
			t.Errorf("%v: %d, %q, %v", ref, n, uid, err)
		}
	}
}
