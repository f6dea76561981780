package apiserver_test

import (
	"testing"

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
}
