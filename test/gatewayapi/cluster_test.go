package gatewayapi

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gw "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/gateway-api/pkg/features"
)

const (
	binary = "../../bin/knarr"
	// link has the addresses of load balancers: 198.51.100.1 to 198.51.100.60.
	link, network = "knarr-gwtest", "198.51.100."
	most          = 60
	// usable can be asked for, and unusable is given to nobody.
	usable, unusable = network + "59", network + "250"
)

// images are those that the suite asks for, and what they are built from.
var images = []struct{ name, from string }{
	{"registry.k8s.io/gateway-api/echo-basic:v1.5.1", echo}, {"registry.k8s.io/gateway-api/echo-basic:v1.6.0-dev.2", echo}, {"registry.k8s.io/gateway-api/echo-basic:v1.6.0-dev.3", echo},
	{"registry.k8s.io/coredns/coredns:v1.12.2", "./whoami"},
}

const echo = "sigs.k8s.io/gateway-api/conformance/echo-basic"

// A cluster is a running knarr.
type cluster struct{ dir string }

func (c *cluster) kubeconfig() string { return filepath.Join(c.dir, "kubeconfig") }

// start runs a cluster of one node until the test ends.
func start(t *testing.T) *cluster {
	t.Helper()
	base, err := os.MkdirTemp("", "knarr-gateway-")
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{filepath.Join(base, "data")}
	addLink(t)
	logFile, err := os.Create(filepath.Join(base, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "server", "--data-dir", c.dir, "--config", "/dev/null", "--https-listen-port", fmt.Sprint(freePort(t)), "--kubelet-port", fmt.Sprint(freePort(t)),
		"--cluster-cidr", "10.152.0.0/16", "--service-cidr", "10.153.0.0/16", "--node-name", "gateway", "--disable", "servicelb", "--service-node-port-range", "32000-32700")
	cmd.Stdout, cmd.Stderr = logFile, logFile
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if out, err := exec.Command(binary, "down", "--data-dir", c.dir, "--purge").CombinedOutput(); err != nil {
			t.Errorf("knarr down: %v\n%s", err, out)
		}
		if t.Failed() {
			b, _ := os.ReadFile(logFile.Name())
			lines := strings.Split(string(b), "\n")
			t.Logf("the end of the server's log:\n%s", strings.Join(lines[max(0, len(lines)-30):], "\n"))
		}
		os.RemoveAll(base)
	})
	if out, err := exec.Command(binary, "wait", "--data-dir", c.dir).CombinedOutput(); err != nil {
		t.Fatalf("knarr wait: %v\n%s", err, out)
	}
	for i, image := range images {
		app, archive := filepath.Join(base, fmt.Sprint("app", i)), filepath.Join(base, fmt.Sprintf("image%d.tar", i))
		build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", app, image.from)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", image.from, err, out)
		}
		if err := writeImage(archive, image.name, app); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(binary, "images", "--data-dir", c.dir, "load", archive).CombinedOutput(); err != nil {
			t.Fatalf("load %s: %v\n%s", image.name, err, out)
		}
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	cfg.QPS = -1
	go balance(ctx, t, kubernetes.NewForConfigOrDie(cfg))
	return c
}

func freePort(t *testing.T) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// addLink makes a bridge without members that has the addresses: what is sent there from
// this machine stays on it.
func addLink(t *testing.T) {
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: link}}
	_ = netlink.LinkDel(bridge)
	if err := netlink.LinkAdd(bridge); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netlink.LinkDel(bridge) })
	for i := 1; i <= most; i++ {
		if err := netlink.AddrAdd(bridge, &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(network + fmt.Sprint(i)), Mask: net.CIDRMask(32, 32)}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := netlink.LinkSetUp(bridge); err != nil {
		t.Fatal(err)
	}
}

// balance gives each Service of type LoadBalancer an address of its own.
func balance(ctx context.Context, t *testing.T, client *kubernetes.Clientset) {
	for ctx.Err() == nil {
		list, err := client.CoreV1().Services("").List(ctx, metav1.ListOptions{})
		if err != nil {
			continue
		}
		taken := map[string]bool{usable: true}
		for _, s := range list.Items {
			for _, in := range s.Status.LoadBalancer.Ingress {
				taken[in.IP] = true
			}
		}
		for i := range list.Items {
			s := &list.Items[i]
			if s.Spec.Type != corev1.ServiceTypeLoadBalancer || s.DeletionTimestamp != nil {
				continue
			}
			var want []corev1.LoadBalancerIngress
			if asked := s.Annotations["knarr.io/load-balancer-ips"]; asked != "" {
				for one := range strings.SplitSeq(asked, ",") {
					if one == usable {
						want = append(want, corev1.LoadBalancerIngress{IP: one})
					}
				}
			} else if len(s.Status.LoadBalancer.Ingress) > 0 {
				continue
			} else {
				for n := 1; n <= most && want == nil; n++ {
					if a := network + fmt.Sprint(n); !taken[a] {
						taken[a], want = true, []corev1.LoadBalancerIngress{{IP: a}}
					}
				}
			}
			if slices.EqualFunc(want, s.Status.LoadBalancer.Ingress, func(a, b corev1.LoadBalancerIngress) bool { return a.IP == b.IP }) {
				continue
			}
			s.Status.LoadBalancer.Ingress = want
			_, _ = client.CoreV1().Services(s.Namespace).UpdateStatus(ctx, s, metav1.UpdateOptions{}) // the next round tries again
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// features are those that the class says it has.
func (c *cluster) features(t *testing.T, kube client.Client) (all []features.FeatureName) {
	t.Helper()
	for range 100 {
		class := &gw.GatewayClass{}
		if err := kube.Get(t.Context(), client.ObjectKey{Name: "knarr"}, class); err == nil && len(class.Status.SupportedFeatures) > 0 {
			for _, f := range class.Status.SupportedFeatures {
				all = append(all, features.FeatureName(f.Name))
			}
			return all
		}
		time.Sleep(200 * time.Millisecond)
	}
	t.Fatal("the class knarr has no features")
	return nil
}

func (c *cluster) version(t *testing.T) string {
	out, err := exec.Command(binary, "version").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(out) + " unknown unknown")[1]
}
