package dev

import (
	"context"
	"fmt"
	"strings"
	"syscall"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const pool = `
apiVersion: knarr.io/v1alpha1
kind: AddressPool
metadata: {name: bridge}
spec: {addresses: [%[1]s.200-%[1]s.209]}
---
apiVersion: v1
kind: Service
metadata: {name: outside}
spec: {type: LoadBalancer, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
`

// addressPool gives a Service an address that no machine has. This host finds it by ARP
// at one node, then at the other where the first may not be asked, and again at the
// first when the other's process is killed.
func addressPool(w *world) {
	network := w.one.Status.HostIP[:strings.LastIndexByte(w.one.Status.HostIP, '.')]
	w.apply(fmt.Sprintf(pool, network))
	address := ""
	w.until("the Service's address", func() bool {
		s, err := w.client.CoreV1().Services("default").Get(context.Background(), "outside", metav1.GetOptions{})
		if err == nil && len(s.Status.LoadBalancer.Ingress) == 1 {
			address = s.Status.LoadBalancer.Ingress[0].IP
		}
		return strings.HasPrefix(address, network+".20")
	})
	answered := func(by string) {
		w.t.Helper()
		w.until(address+" is answered for by "+by, func() bool {
			all, err := w.client.CoordinationV1().Leases("knarr-addresses").List(context.Background(), metav1.ListOptions{})
			return err == nil && len(all.Items) == 1 && *all.Items[0].Spec.HolderIdentity == by && strings.HasPrefix(get("http://"+address), "hello from ")
		})
	}
	const exclude = "node.kubernetes.io/exclude-from-external-load-balancers"
	w.knarr("kubectl", "label", "node", "e2e-1", exclude+"=")
	answered("e2e-2")
	w.knarr("kubectl", "label", "node", "e2e-1", exclude+"-")
	w.signal(w.nodeAgent, syscall.SIGKILL)
	answered("e2e-1")
	w.knarr("dev", "up", "--name", "e2e", "--dir", w.base, "--timeout", "30s")
	if out := w.knarr("kubectl", "get", "addresspools"); !strings.Contains(out, "bridge") {
		w.t.Errorf("get addresspools:\n%s", out)
	}
	w.knarr("kubectl", "delete", "service/outside", "addresspool/bridge")
	w.until("the Lease is gone", func() bool {
		all, err := w.client.CoordinationV1().Leases("knarr-addresses").List(context.Background(), metav1.ListOptions{})
		return err == nil && len(all.Items) == 0
	})
}
