package apiserver_test

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestOwnRoles(t *testing.T) {
	w := newWorld(t)
	dns := w.as("system:serviceaccount:kube-system:kube-dns", "system:serviceaccounts", "system:serviceaccounts:kube-system")
	_, err := dns.CoreV1().Services("").List(w.ctx, metav1.ListOptions{})
	w.must(err)
	_, err = dns.DiscoveryV1().EndpointSlices("").List(w.ctx, metav1.ListOptions{})
	w.must(err)
	watch, err := dns.CoreV1().Namespaces().Watch(w.ctx, metav1.ListOptions{})
	w.must(err)
	watch.Stop()
	_, err = dns.CoreV1().ConfigMaps("kube-system").List(w.ctx, metav1.ListOptions{FieldSelector: "metadata.name=coredns-custom"})
	w.must(err)
	for _, selector := range []string{"", "metadata.name=kube-root-ca.crt"} {
		if _, err := dns.CoreV1().ConfigMaps("kube-system").List(w.ctx, metav1.ListOptions{FieldSelector: selector}); !apierrors.IsForbidden(err) {
			t.Errorf("other ConfigMaps, by %q: %v", selector, err)
		}
	}
}
