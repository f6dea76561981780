package dev

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// TestPartition cuts one of three nodes off the others, and heals the link: meanwhile the
// others serve each other, and the node what it has itself, and afterwards all is as before.
func TestPartition(t *testing.T) {
	temp, archive := prepare(t)
	w := newWorld(t, temp, "e2e-1", "e2e-2", "e2e-3")
	w.knarr("dev", "up", "--name", "e2e", "--dir", w.base, "--nodes", "3", "--timeout", "60s")
	t.Setenv("KUBECONFIG", filepath.Join(w.base, "e2e", "kubeconfig"))
	cfg, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	w.client = kubernetes.NewForConfigOrDie(cfg)
	w.knarr("images", "load", "--all-nodes", "--name", "e2e", "--dir", w.base, archive)
	w.apply(everywhere + "---\napiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {selector: {app: web}, internalTrafficPolicy: Local, ports: [{port: 80, targetPort: 8080}]}\n")
	w.knarr("kubectl", "rollout", "status", "daemonset/web", "--timeout=60s")
	list, err := w.client.CoreV1().Pods("default").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	on := map[string]corev1.Pod{}
	for _, p := range list.Items {
		on[p.Spec.NodeName] = p
	}
	first, second, third := on["e2e-1"], on["e2e-2"], on["e2e-3"]
	at := func(p corev1.Pod) string { return "http://" + p.Status.PodIP + ":8080" }
	reaches := func(from, to corev1.Pod) bool {
		got, err := w.try("kubectl", "exec", from.Name, "--", "busybox", "timeout", "3", "wget", "-qO-", at(to))
		return err == nil && got == "hello from "+to.Name+"\n"
	}
	w.until("the first node reaches the third", func() bool { return reaches(first, third) })

	cable := cableOf(t, w.spaces()+"/e2e-3.net")
	if err := netlink.LinkSetDown(cable); err != nil {
		t.Fatal(err)
	}
	if reaches(first, third) || reaches(second, third) {
		t.Error("a node that is cut off is reached")
	}
	if !reaches(first, second) || !reaches(second, first) {
		t.Error("the others do not reach each other")
	}
	alone := func(args ...string) string {
		out, err := exec.Command("nsenter", append([]string{"--net=" + w.spaces() + "/e2e-3.net", "busybox"}, args...)...).CombinedOutput()
		if err != nil {
			t.Errorf("on the node that is cut off, %s: %v\n%s", args, err, out)
		}
		return string(out)
	}
	web, err := w.client.CoreV1().Services("default").Get(context.Background(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := alone("timeout", "10", "wget", "-qO-", "http://"+web.Spec.ClusterIP); got != "hello from "+third.Name+"\n" {
		t.Errorf("its own Service says %q", got)
	}
	if got := alone("nslookup", "web.default.svc.cluster.local", "10.43.0.10"); !strings.Contains(got, web.Spec.ClusterIP) {
		t.Errorf("its names: %s", got)
	}
	if err := netlink.LinkSetUp(cable); err != nil {
		t.Fatal(err)
	}
	w.until("the healed node is reached, and reaches", func() bool {
		return reaches(first, third) && reaches(third, first) && reaches(second, third)
	})
	w.knarr("kubectl", "wait", "--for=condition=Ready", "node", "--all", "--timeout=60s")
	for _, p := range []corev1.Pod{first, second, third} {
		now, err := w.client.CoreV1().Pods("default").Get(context.Background(), p.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if s := now.Status.ContainerStatuses[0]; now.UID != p.UID || s.RestartCount != 0 {
			t.Errorf("%s: %v", p.Name, s)
		}
	}
}

// cableOf is this machine's end of a node's only cable.
func cableOf(t *testing.T, space string) netlink.Link {
	t.Helper()
	ns, err := netns.GetFromPath(space)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	inside, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	end, err := inside.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	cable, err := netlink.LinkByIndex(end.Attrs().ParentIndex)
	if err != nil {
		t.Fatal(err)
	}
	return cable
}
