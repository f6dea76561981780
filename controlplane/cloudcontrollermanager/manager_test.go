package cloudcontrollermanager

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	cloudprovider "k8s.io/cloud-provider"

	"knarr/internal/apitest"
)

// A cluster is an API server and a manager in a bubble of fake time.
type cluster struct {
	*testing.T
	ctx    context.Context
	client *kubernetes.Clientset
	*vendor
}

// with runs f beside the controllers named; all of them with none named.
func with(t *testing.T, v *vendor, controllers []string, f func(c *cluster), change ...func(*Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, stop := apitest.New(t)
		defer stop()
		ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
		defer cancel()
		cfg := config(s, v, controllers...)
		for _, c := range change {
			c(&cfg)
		}
		m, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- m.Run(ctx) }()
		synctest.Wait()
		f(&cluster{t, ctx, s.Client(t), v})
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// config is that of a manager whose controllers may do only what the bootstrap
// roles say.
func config(s *apitest.Server, v cloudprovider.Interface, controllers ...string) Config {
	all := "system:authenticated"
	return Config{
		Kube: s.Config(&user.DefaultInfo{Name: "system:cloud-controller-manager", Groups: []string{all}}),
		ClientFor: func(account string) *rest.Config {
			return s.Config(&user.DefaultInfo{Name: "system:serviceaccount:kube-system:" + account,
				Groups: []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", all}})
		},
		Cloud:       func() (cloudprovider.Interface, error) { return v, nil },
		Controllers: controllers, ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")},
	}
}

// until waits, in fake time, until ok; it fails the test after ten minutes.
func (c *cluster) until(what string, ok func() (bool, error)) {
	c.Helper()
	var last error
	for range 6000 {
		synctest.Wait()
		done, err := ok()
		if done {
			return
		}
		last = err
		time.Sleep(100 * time.Millisecond)
	}
	c.Fatalf("%s: not after ten minutes: %v", what, last)
}

func (c *cluster) no(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

// node makes a Node as a kubelet with --cloud-provider=external does.
func (c *cluster) node(name string, change ...func(*corev1.Node)) *corev1.Node {
	c.Helper()
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/hostname": name}},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "node.cloudprovider.kubernetes.io/uninitialized", Value: "true", Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	for _, f := range change {
		f(n)
	}
	got, err := c.client.CoreV1().Nodes().Create(c.ctx, n, metav1.CreateOptions{})
	c.no(err)
	return got
}

// plain is a node that is initialised.
func plain(n *corev1.Node) { n.Spec.Taints = nil }

func (c *cluster) get(name string) *corev1.Node {
	c.Helper()
	n, err := c.client.CoreV1().Nodes().Get(c.ctx, name, metav1.GetOptions{})
	c.no(err)
	return n
}

// ready sets the node's condition, as its kubelet or the node-lifecycle-controller does.
func (c *cluster) ready(name string, status corev1.ConditionStatus) {
	c.Helper()
	_, err := c.client.CoreV1().Nodes().PatchStatus(c.ctx, name, fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Ready","status":%q}]}}`, status))
	c.no(err)
}

func (c *cluster) patch(name, body string) {
	c.Helper()
	_, err := c.client.CoreV1().Nodes().Patch(c.ctx, name, types.MergePatchType, []byte(body), metav1.PatchOptions{})
	c.no(err)
}

// events are the reasons and messages about an object, in the order they came.
func (c *cluster) events(name string) string {
	c.Helper()
	list, err := c.client.CoreV1().Events("").List(c.ctx, metav1.ListOptions{})
	c.no(err)
	var out []string
	for _, e := range list.Items {
		if e.InvolvedObject.Name == name {
			out = append(out, e.Source.Component+" "+e.Type+" "+e.Reason+": "+e.Message)
		}
	}
	return strings.Join(out, "\n")
}

func (c *cluster) recorded(name, want string) {
	c.Helper()
	c.until("the event "+want, func() (bool, error) {
		got := c.events(name)
		return strings.Contains(got, want), errors.New(got)
	})
}

func TestChoose(t *testing.T) {
	for _, c := range []struct {
		selection []string
		want      string
	}{
		{nil, "[cloud-node-controller cloud-node-lifecycle-controller service-lb-controller node-route-controller]"},
		{[]string{"*", "-route"}, "[cloud-node-controller cloud-node-lifecycle-controller service-lb-controller]"},
		{[]string{"cloud-node", "cloud-node-lifecycle", "service", "route"}, "[cloud-node-controller cloud-node-lifecycle-controller service-lb-controller node-route-controller]"},
		{[]string{"*", "-service-lb-controller", "service"}, "[cloud-node-controller cloud-node-lifecycle-controller node-route-controller]"},
		{[]string{"-*"}, `--controllers: "*" is not in the list of known controllers`},
		{[]string{"gardener"}, `--controllers: "gardener" is not in the list of known controllers`},
	} {
		on, err := choose(c.selection)
		names := []string{}
		for _, e := range on {
			names = append(names, e.name)
		}
		got := fmt.Sprint(names)
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%v: %s, want %s", c.selection, got, c.want)
		}
	}
}

// TestTerms: a provider is made for each time this manager leads, and its channel is
// closed at the end of it.
func TestTerms(t *testing.T) {
	v := newVendor()
	var made atomic.Int32
	with(t, v, nil, func(c *cluster) {
		c.until("it leads", func() (bool, error) { n, _ := v.terms(); return n == 1, nil })
		v.set(func() {
			if v.informers == nil {
				t.Error("the provider was given no informers")
			}
		})
		_, first := v.terms()
		lease, err := c.client.CoordinationV1().Leases("kube-system").Get(c.ctx, "cloud-controller-manager", metav1.GetOptions{})
		c.no(err)
		other := "another"
		lease.Spec.HolderIdentity = &other
		_, err = c.client.CoordinationV1().Leases("kube-system").Update(c.ctx, lease, metav1.UpdateOptions{})
		c.no(err)
		c.until("it leads again", func() (bool, error) { n, _ := v.terms(); return n == 2, nil })
		select {
		case <-first:
		default:
			t.Error("the first term's channel is open")
		}
		if n := made.Load(); n != 2 {
			t.Errorf("%d providers were made", n)
		}
	}, func(cfg *Config) {
		cfg.LeaderElect, cfg.Identity = true, "me"
		cfg.Cloud = func() (cloudprovider.Interface, error) { made.Add(1); return v, nil }
	})
}

// TestLittle: what a provider does not have is left out, and the rest runs.
func TestLittle(t *testing.T) {
	v := newVendor()
	v.noInstances, v.noBalancers = true, true
	with(t, v, nil, func(c *cluster) {
		c.node("n", func(n *corev1.Node) { n.Spec.PodCIDRs, n.Spec.PodCIDR = []string{"10.42.1.0/24"}, "10.42.1.0/24" })
		c.until("the route is made", func() (bool, error) { return v.count("create n") == 1, nil })
		if v.count("metadata") > 0 {
			t.Error("the provider was asked for instances")
		}
	})
}

// TestNothing: a provider that has nothing for the controllers that are on is no reason
// to end and to begin anew.
func TestNothing(t *testing.T) {
	v := newVendor()
	v.noInstances = true
	with(t, v, []string{"cloud-node"}, func(c *cluster) {
		time.Sleep(time.Hour)
		synctest.Wait()
		if n, _ := v.terms(); n != 1 {
			t.Errorf("the provider was initialised %d times", n)
		}
	}, func(cfg *Config) { cfg.LeaderElect = true })
}

// TestMain takes out client-go's pause after an error: it keeps the time of
// the last one for the whole process, and bubbles do not share a time.
func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = []utilruntime.ErrorHandler{func(_ context.Context, err error, msg string, _ ...any) {
		fmt.Println("client-go:", msg, err)
	}}
	m.Run()
}

// TestReach: a controller asks as fast as it may, which is what the flags say if any does.
func TestReach(t *testing.T) {
	for _, tt := range []struct {
		cfg   Config
		qps   float32
		burst int
	}{{Config{}, -1, 0}, {Config{QPS: 50, Burst: 100}, 50, 100}} {
		tt.cfg.ClientFor = func(string) *rest.Config { return &rest.Config{QPS: 9} }
		if got := (&term{Config: tt.cfg}).reach(); got.QPS != tt.qps || got.Burst != tt.burst {
			t.Errorf("%v %v, want %v %v", got.QPS, got.Burst, tt.qps, tt.burst)
		}
	}
}
