package dev

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

const families = `
apiVersion: v1
kind: Service
metadata: {name: both}
spec:
  type: NodePort
  ipFamilyPolicy: PreferDualStack
  selector: {node: first}
  ports: [{port: 80, targetPort: 8080, nodePort: 30081}]
`

// TestFamilies runs clusters with IPv6: what one family does the other does too.
func TestFamilies(t *testing.T) {
	temp, archive := prepare(t)
	for _, c := range []struct {
		name string
		want int // addresses of each thing
	}{{"ipv6", 1}, {"dual", 2}} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, temp, "e2e-1", "e2e-2")
			w.nodeAgent = filepath.Join(w.base, "e2e", "e2e-2")
			w.knarr("dev", "up", "--name", "e2e", "--dir", w.base, "--nodes", "2", "--ip-family", c.name, "--timeout", "60s")
			t.Setenv("KUBECONFIG", filepath.Join(w.base, "e2e", "kubeconfig"))
			cfg, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
			if err != nil {
				t.Fatal(err)
			}
			w.client = kubernetes.NewForConfigOrDie(cfg)
			if out, err := w.try("dev", "up", "--name", "e2e", "--dir", w.base, "--ip-family", "ipv4"); err == nil || !strings.Contains(out, "was made with "+c.name) {
				t.Errorf("another family for the same cluster: %v\n%s", err, out)
			}
			w.steps([]step{
				{"images", func(w *world) { images(w, archive) }}, {"pods", pods},
				{"addresses", func(w *world) { addressesOf(w, c.want) }},
				{"every family", everyFamily}, {"logs and exec", logs}, {"port-forward", portForward}, {"nothing leaves", nothingLeavesAtAll},
				{"agent killed", func(w *world) {
					w.signal(w.nodeAgent, syscall.SIGKILL)
					w.knarr("dev", "up", "--name", "e2e", "--dir", w.base, "--timeout", "30s")
					everyFamily(w)
				}},
			}...)
			w.noTraces()
		})
	}
}

// addressesOf counts those of each family that nodes, pods and Services have.
func addressesOf(w *world, want int) {
	ctx := context.Background()
	w.apply(families)
	nodes, err := w.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, n := range nodes.Items {
		if len(nodeAddresses(n)) != want || len(n.Spec.PodCIDRs) != want {
			w.t.Errorf("node %s has addresses %v and ranges %v", n.Name, nodeAddresses(n), n.Spec.PodCIDRs)
		}
	}
	for _, p := range []corev1.Pod{w.one, w.two} {
		if len(p.Status.PodIPs) != want || len(p.Status.HostIPs) != want {
			w.t.Errorf("pod %s has addresses %v on a node of %v", p.Name, p.Status.PodIPs, p.Status.HostIPs)
		}
	}
	for _, at := range []struct{ namespace, name string }{{"default", "both"}, {"kube-system", "kube-dns"}} {
		svc, err := w.client.CoreV1().Services(at.namespace).Get(ctx, at.name, metav1.GetOptions{})
		if err != nil || len(svc.Spec.ClusterIPs) != want {
			w.t.Errorf("Service %s has addresses %v, %v", at.name, svc.Spec.ClusterIPs, err)
		}
	}
}

func nodeAddresses(n corev1.Node) (all []string) {
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			all = append(all, a.Address)
		}
	}
	return all
}

// url is that of an address and port.
func url(address, port string) string { return "http://" + net.JoinHostPort(address, port) }

// everyFamily asks a pod of the other node at each of its addresses, by a Service at
// each of the Service's, by name, and from this host by each node's port.
func everyFamily(w *world) {
	ctx := context.Background()
	for _, c := range []struct{ from, to corev1.Pod }{{w.one, w.two}, {w.two, w.one}} {
		for _, ip := range c.to.Status.PodIPs {
			if got := w.wget(c.from, url(ip.IP, "8080")); got != "hello from "+c.to.Name+"\n" {
				w.t.Errorf("%s asks %s: %q", c.from.Name, ip.IP, got)
			}
		}
		log := w.knarr("kubectl", "logs", c.to.Name)
		for _, ip := range c.from.Status.PodIPs {
			if !strings.Contains(log, ip.IP+"]:") {
				w.t.Errorf("%s does not see the address %s of %s:\n%s", c.to.Name, ip.IP, c.from.Name, log)
			}
		}
	}
	first := "hello from " + w.one.Name + "\n"
	svc, err := w.client.CoreV1().Services("default").Get(ctx, "both", metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	names := w.knarr("kubectl", "exec", w.two.Name, "--", "nslookup", "both.default.svc.cluster.local")
	for _, ip := range svc.Spec.ClusterIPs {
		w.until("Service at "+ip, func() bool {
			got, err := w.try("kubectl", "exec", w.two.Name, "--", "wget", "-qO-", url(ip, "80"))
			return err == nil && got == first
		})
		if !strings.Contains(names, ip) {
			w.t.Errorf("DNS does not tell %s:\n%s", ip, names)
		}
	}
	nodes, err := w.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, n := range nodes.Items {
		for _, ip := range nodeAddresses(n)[:len(svc.Spec.ClusterIPs)] {
			w.until("node port at "+ip, func() bool { return get(url(ip, "30081")) == first })
		}
	}
}

// nothingLeavesAtAll asks addresses that are not this host's.
func nothingLeavesAtAll(w *world) {
	for _, p := range w.two.Status.PodIPs {
		outside := "203.0.113.1"
		if strings.Contains(p.IP, ":") {
			outside = "2001:db8:113::1"
		}
		if got, err := w.try("kubectl", "exec", w.two.Name, "--", "busybox", "timeout", "20", "wget", "-qO-", url(outside, "80")); err == nil || !strings.Contains(got, "can't connect") {
			w.t.Errorf("%s is not refused: %q, %v", outside, got, err)
		}
	}
}
