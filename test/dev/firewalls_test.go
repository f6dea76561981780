package dev

import (
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"knarr/internal/need"
	"knarr/internal/run"
)

// TestFirewalls has other firewalls of the nodes begin, drop everything, or take all rules
// away, theirs and knarr's: no Service and no pod changes, and traffic flows again.
func TestFirewalls(t *testing.T) {
	temp, archive := prepare(t)
	if _, err := exec.LookPath("iptables"); err != nil {
		need.Skip(t, "needs iptables: apt-get install iptables")
	}
	w := newWorld(t, temp, "e2e-1", "e2e-2")
	w.knarr("dev", "up", "--name", "e2e", "--dir", w.base, "--nodes", "2", "--ip-family", "dual", "--timeout", "60s")
	t.Setenv("KUBECONFIG", filepath.Join(w.base, "e2e", "kubeconfig"))
	cfg, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	w.client = kubernetes.NewForConfigOrDie(cfg)
	images(w, archive)
	pods(w)
	w.apply(families)
	w.flows("before")
	iptables := func(name string, args ...string) func() {
		return func() {
			if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
				t.Errorf("%s %v: %v\n%s", name, args, err, out)
			}
		}
	}
	for _, c := range []struct {
		name string
		do   []func()
	}{
		{"docker", []func(){iptables("iptables", "-P", "FORWARD", "DROP"), iptables("ip6tables", "-P", "FORWARD", "DROP")}},
		// As with ufw, the nodes are let speak with each other: that is for their administrator.
		{"ufw", []func(){iptables("iptables", "-A", "INPUT", "-i", "eth0", "-j", "ACCEPT"), iptables("iptables", "-A", "INPUT", "-i", "lo", "-j", "ACCEPT"), iptables("iptables", "-P", "INPUT", "DROP")}},
		{"restart", []func(){iptables("iptables", "-F", "FORWARD"), iptables("ip6tables", "-F", "FORWARD")}},
		{"flush", []func(){func() {
			conn, err := nftables.New()
			if err == nil {
				conn.FlushRuleset()
				err = conn.Flush()
			}
			if err != nil {
				t.Error("flush the ruleset: ", err)
			}
		}}},
	} {
		watch := w.watchPort("http://"+w.two.Status.HostIP+":30081", "hello from "+w.one.Name+"\n")
		for _, n := range w.nodes {
			w.inNode(n, c.do...)
		}
		w.flows(c.name)
		asked, failed, longest := watch()
		t.Logf("%s: a node port was asked %d times meanwhile, %d failed, all within %v", c.name, asked, failed, longest.Round(time.Millisecond))
		if asked == failed {
			t.Errorf("%s: no request to the node port was answered", c.name)
		}
	}
}

// watchPort asks for a page all the time, each time by a new connection, and says at the
// end how often, how often in vain, and for how long at most there was no answer.
func (w *world) watchPort(page, want string) (end func() (asked, failed int, longest time.Duration)) {
	client := http.Client{Timeout: 250 * time.Millisecond, Transport: &http.Transport{DisableKeepAlives: true}}
	stop, done := make(chan struct{}), make(chan struct{})
	var asked, failed int
	var longest time.Duration
	go func() {
		defer close(done)
		answered := time.Now()
		for tick := time.NewTicker(5 * time.Millisecond); ; {
			select {
			case <-stop:
				tick.Stop()
				return
			case <-tick.C:
			}
			asked++
			resp, err := client.Get(page)
			var b []byte
			if err == nil {
				b, err = io.ReadAll(resp.Body)
				resp.Body.Close()
			}
			if err != nil || string(b) != want {
				failed++
				longest = max(longest, time.Since(answered))
				continue
			}
			answered = time.Now()
		}
	}()
	return func() (int, int, time.Duration) {
		close(stop)
		<-done
		return asked, failed, longest
	}
}

// inNode does something in a node's network namespace.
func (w *world) inNode(node string, do ...func()) {
	w.t.Helper()
	err := run.OnThread("enter a node", func() error {
		f, err := os.Open(w.spaces() + "/" + node + ".net")
		if err != nil {
			return err
		}
		defer f.Close()
		if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		for _, one := range do {
			one()
		}
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// flows waits until pods reach each other across nodes in both families, Services, names,
// and this host a node port.
func (w *world) flows(when string) {
	w.t.Helper()
	first, second := "hello from "+w.one.Name+"\n", "hello from "+w.two.Name+"\n"
	svc, err := w.client.CoreV1().Services("default").Get(context.Background(), "both", metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	ask := func(what, url, want string) {
		w.t.Helper()
		w.until(when+": "+what+" "+url, func() bool {
			got, err := w.try("kubectl", "exec", w.two.Name, "--", "busybox", "timeout", "2", "wget", "-qO-", url)
			return err == nil && got == want
		})
	}
	for _, ip := range w.one.Status.PodIPs {
		ask("pod to pod", url(ip.IP, "8080"), first)
	}
	for _, ip := range svc.Spec.ClusterIPs {
		ask("pod to Service", url(ip, "80"), first)
	}
	w.until(when+": names", func() bool {
		got, err := w.try("kubectl", "exec", w.two.Name, "--", "nslookup", "both.default.svc.cluster.local")
		return err == nil && strings.Contains(got, svc.Spec.ClusterIP)
	})
	for _, ip := range w.two.Status.HostIPs {
		w.until(when+": node port of the other node", func() bool { return get(url(ip.IP, "30081")) == first })
	}
	w.until(when+": the other way", func() bool {
		got, err := w.try("kubectl", "exec", w.one.Name, "--", "busybox", "timeout", "2", "wget", "-qO-", url(w.two.Status.PodIP, "8080"))
		return err == nil && got == second
	})
}
