package controllermanager

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"knarr/internal/apitest"
)

// A cluster is an API server and a manager in a bubble of fake time.
type cluster struct {
	*testing.T
	ctx    context.Context
	client *kubernetes.Clientset
	server *apitest.Server
	// beat, when set, is called while the test waits.
	beat func()
}

// inCluster runs f beside the controllers named; all of them with none named.
func inCluster(t *testing.T, controllers []string, f func(c *cluster)) {
	t.Helper()
	inClusterOf(t, func(s *apitest.Server) Config { return config(s, controllers...) }, f)
}

// inClusterOf runs f beside a manager as configured.
func inClusterOf(t *testing.T, configure func(*apitest.Server) Config, f func(c *cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, stop := apitest.New(t)
		defer stop()
		inClusterOn(t, s, configure, f)
	})
}

// inClusterOn runs f beside a manager as configured, on an API server in a bubble.
func inClusterOn(t *testing.T, s *apitest.Server, configure func(*apitest.Server) Config, f func(c *cluster)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
	defer cancel()
	c := &cluster{T: t, ctx: ctx, client: s.Client(t), server: s}
	m, err := New(configure(s))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	time.Sleep(time.Second) // until the service account is there
	synctest.Wait()
	f(c)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// config is that of a manager whose controllers may do only what the bootstrap
// roles say.
func config(s *apitest.Server, controllers ...string) Config {
	all := "system:authenticated"
	return Config{
		Kube: s.Config(&user.DefaultInfo{Name: "system:kube-controller-manager", Groups: []string{all}}),
		ClientFor: func(account string) *rest.Config {
			return s.Config(&user.DefaultInfo{Name: "system:serviceaccount:kube-system:" + account,
				Groups: []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", all}})
		},
		Controllers: controllers, RootCA: []byte("PEM"),
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")},
	}
}

// until waits, in fake time, until ok; it fails the test after a minute.
func (c *cluster) until(what string, ok func() (bool, error)) {
	c.Helper()
	var last error
	for range 600 {
		if c.beat != nil {
			c.beat()
		}
		synctest.Wait()
		done, err := ok()
		if done {
			return
		}
		last = err
		time.Sleep(100 * time.Millisecond)
	}
	c.Fatalf("%s: not after a minute: %v", what, last)
}

func (c *cluster) no(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

var template = corev1.PodTemplateSpec{
	ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
	Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example.test/web:1"}}},
}

var selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: "default"}
}

func (c *cluster) pods() []corev1.Pod {
	c.Helper()
	list, err := c.client.CoreV1().Pods("default").List(c.ctx, metav1.ListOptions{})
	c.no(err)
	return list.Items
}

// makeReady does what a kubelet does to every pod that is not ready yet.
func (c *cluster) makeReady() {
	c.Helper()
	for _, p := range c.pods() {
		if p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodRunning {
			continue
		}
		p.Status.Phase = corev1.PodRunning
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
		if _, err := c.client.CoreV1().Pods("default").UpdateStatus(c.ctx, &p, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			c.Fatal(err)
		}
	}
}

func TestNamespaces(t *testing.T) {
	inCluster(t, []string{"namespace-controller", "serviceaccount-controller", "root-ca-certificate-publisher-controller"}, func(c *cluster) {
		api := c.client.CoreV1()
		_, err := api.Namespaces().Create(c.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, metav1.CreateOptions{})
		c.no(err)
		c.until("the namespace is furnished", func() (bool, error) {
			if _, err := api.ServiceAccounts("n").Get(c.ctx, "default", metav1.GetOptions{}); err != nil {
				return false, err
			}
			m, err := api.ConfigMaps("n").Get(c.ctx, "kube-root-ca.crt", metav1.GetOptions{})
			return err == nil && m.Data["ca.crt"] == "PEM", err
		})
		_, err = api.Secrets("n").Create(c.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "held", Finalizers: []string{"example.test/hold"}}}, metav1.CreateOptions{})
		c.no(err)
		c.no(api.Namespaces().Delete(c.ctx, "n", metav1.DeleteOptions{}))
		c.until("the namespace says what it waits for", func() (bool, error) {
			ns, err := api.Namespaces().Get(c.ctx, "n", metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			for _, cond := range ns.Status.Conditions {
				if cond.Type == corev1.NamespaceFinalizersRemaining && cond.Status == corev1.ConditionTrue {
					if want := "Some content in the namespace has finalizers remaining: example.test/hold in 1 resource instances"; cond.Message != want {
						return false, fmt.Errorf("got %q", cond.Message)
					}
					return true, nil
				}
			}
			return false, fmt.Errorf("conditions %v", ns.Status.Conditions)
		})
		_, err = api.Secrets("n").Patch(c.ctx, "held", "application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		c.no(err)
		c.until("the namespace is gone", func() (bool, error) {
			_, err := api.Namespaces().Get(c.ctx, "n", metav1.GetOptions{})
			return apierrors.IsNotFound(err), nil
		})
	})
}

func TestReplicaSet(t *testing.T) {
	inCluster(t, []string{"replicaset-controller", "serviceaccount-controller"}, func(c *cluster) {
		orphan := &corev1.Pod{ObjectMeta: meta("orphan"), Spec: template.Spec}
		orphan.Labels = template.Labels
		_, err := c.client.CoreV1().Pods("default").Create(c.ctx, orphan, metav1.CreateOptions{})
		c.no(err)
		api := c.client.AppsV1().ReplicaSets("default")
		_, err = api.Create(c.ctx, &appsv1.ReplicaSet{ObjectMeta: meta("web"), Spec: appsv1.ReplicaSetSpec{Replicas: new(int32(5)), Selector: selector, Template: template}}, metav1.CreateOptions{})
		c.no(err)
		status := func(replicas, ready int32) func() (bool, error) {
			return func() (bool, error) {
				rs, err := api.Get(c.ctx, "web", metav1.GetOptions{})
				if err != nil {
					return false, err
				}
				s := rs.Status
				return s.Replicas == replicas && s.ReadyReplicas == ready && s.ObservedGeneration == rs.Generation, fmt.Errorf("status %+v", s)
			}
		}
		quiet := func(what string, f func() (bool, error)) {
			c.until(what, func() (bool, error) {
				ok, err := f()
				if ok {
					err = nil
				}
				return ok, err
			})
		}
		quiet("five pods", status(5, 0))
		if n := len(c.pods()); n != 5 {
			t.Fatalf("%d pods", n)
		}
		time.Sleep(time.Second) // events made in one instant share a name
		c.makeReady()
		quiet("five ready", status(5, 5))
		_, err = api.Patch(c.ctx, "web", "application/merge-patch+json", []byte(`{"spec":{"replicas":2}}`), metav1.PatchOptions{})
		c.no(err)
		quiet("two pods", status(2, 2))
		events, err := c.client.CoreV1().Events("default").List(c.ctx, metav1.ListOptions{})
		c.no(err)
		seen := map[string]int{}
		for _, e := range events.Items {
			seen[e.Reason]++
		}
		if seen["SuccessfulCreate"] == 0 || seen["SuccessfulDelete"] == 0 {
			t.Errorf("events %v", seen)
		}
	})
}

func TestAddressRanges(t *testing.T) {
	inCluster(t, []string{"node-ipam-controller"}, func(c *cluster) {
		for i := range 3 {
			_, err := c.client.CoreV1().Nodes().Create(c.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}}, metav1.CreateOptions{})
			c.no(err)
		}
		c.until("all nodes have a range of their own", func() (bool, error) {
			list, err := c.client.CoreV1().Nodes().List(c.ctx, metav1.ListOptions{})
			c.no(err)
			seen := map[string]bool{}
			for _, n := range list.Items {
				if n.Spec.PodCIDR != "" && len(n.Spec.PodCIDRs) == 1 && n.Spec.PodCIDRs[0] == n.Spec.PodCIDR {
					seen[n.Spec.PodCIDR] = true
				}
			}
			return len(seen) == 3, fmt.Errorf("ranges %v", seen)
		})
		if n := counted(t, "running_managed_controllers", "nodeipam", "kube-controller-manager"); n != 1 {
			t.Errorf("%v of it are said to run", n)
		}
	})
	if n := counted(t, "running_managed_controllers", "nodeipam", "kube-controller-manager"); n != 0 {
		t.Errorf("%v of it are said to run once it has ended", n)
	}
}

func TestLeadership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := apitest.New(t)
		defer stop()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		c := &cluster{T: t, ctx: ctx, client: s.Client(t), server: s}
		start := func(name string) (end func()) {
			cfg := config(s, "*")
			cfg.LeaderElect, cfg.Identity = true, name
			m, err := New(cfg)
			c.no(err)
			ctx, cancel := context.WithCancel(ctx)
			ended := make(chan error, 1)
			go func() { ended <- m.Run(ctx) }()
			return func() { cancel(); c.no(<-ended) }
		}
		holder := func() string {
			lease, err := c.client.CoordinationV1().Leases("kube-system").Get(ctx, "kube-controller-manager", metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			return *lease.Spec.HolderIdentity
		}
		endOne := start("one")
		c.until("one leads", func() (bool, error) { return holder() == "one", nil })
		endTwo := start("two")
		time.Sleep(time.Minute)
		if got := holder(); got != "one" {
			t.Errorf("%s leads", got)
		}
		c.until("the controllers work", func() (bool, error) {
			_, err := c.client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
			return err == nil, err
		})
		endOne()
		c.until("two leads", func() (bool, error) { return holder() == "two", nil })
		// Another takes the Lease away: two stops, and contends again.
		_, err := c.client.CoordinationV1().Leases("kube-system").Patch(ctx, "kube-controller-manager", "application/merge-patch+json",
			fmt.Appendf(nil, `{"spec":{"holderIdentity":"thief","renewTime":%q}}`, time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")), metav1.PatchOptions{})
		c.no(err)
		c.until("two leads again", func() (bool, error) { return holder() == "two", nil })
		_, err = c.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "later"}}, metav1.CreateOptions{})
		c.no(err)
		c.until("its controllers work", func() (bool, error) {
			_, err := c.client.CoreV1().ServiceAccounts("later").Get(ctx, "default", metav1.GetOptions{})
			return err == nil, err
		})
		endTwo()
	})
}

func TestChoose(t *testing.T) {
	for _, test := range []struct {
		selection []string
		want      int
		bad       bool
	}{
		{nil, len(table) - 2, false}, // two are off by default
		{[]string{"*", "-job-controller"}, len(table) - 3, false},
		{[]string{"*", "bootstrapsigner", "tokencleaner"}, len(table), false}, // as kubeadm writes it
		{[]string{"-*", "ttl", "-csrsigning"}, 1, false},
		{[]string{"*", "selinux-warning-controller", "service", "-cloud-node-lifecycle"}, len(table) - 2, false}, // known, not here
		{[]string{"job-controller", "cronjob-controller"}, 2, false},
		{[]string{"-job-controller"}, 0, false},
		{[]string{"*", "jobs"}, 0, true},
	} {
		on, err := choose(test.selection)
		if (err != nil) != test.bad || len(on) != test.want {
			t.Errorf("%v: %d controllers, %v; want %d", test.selection, len(on), err, test.want)
		}
	}
}

// TestLongestRetry: after an outage no controller is later than upstream's.
func TestLongestRetry(t *testing.T) {
	cfg := &rest.Config{Host: "https://nowhere.invalid"}
	te := &term{Config: Config{Kube: cfg, ClientFor: func(string) *rest.Config { return cfg }, ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")},
		NodeCIDRMaskSizeIPv4: 24, RootCA: []byte("ca")}, broadcast: record.NewBroadcaster()}
	defer te.broadcast.Shutdown()
	te.informers = informers.NewSharedInformerFactory(te.client(), 0)
	got := map[string]time.Duration{}
	for _, e := range table {
		r, err := e.build(te)
		if err = errors.Join(err, te.err); err != nil {
			t.Fatalf("%s: %v", e.name, err)
		}
		v := reflect.ValueOf(r)
		if r == nil || v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
			continue
		}
		if f := v.Elem().FieldByName("RetryDelay"); f.IsValid() && f.Index(1).Int() != 0 {
			got[e.name] = time.Duration(f.Index(1).Int())
		}
	}
	want := map[string]time.Duration{ // of all others it is 1000 s, there and here
		"namespace-controller":                      time.Minute,
		"job-controller":                            time.Minute,
		"endpointslice-mirroring-controller":        100 * time.Second,
		"persistentvolume-attach-detach-controller": 2*time.Minute + 2*time.Second,
		// The period of a loop over everything.
		"persistentvolume-binder-controller": 15 * time.Second,
		"node-lifecycle-controller":          5 * time.Second,
		"pod-garbage-collector-controller":   20 * time.Second,
	}
	if !maps.Equal(got, want) {
		t.Errorf("%v\nwant %v", got, want)
	}
}

// TestMissed: a selection may name controllers that are not here, which is logged.
func TestMissed(t *testing.T) {
	got := missed([]string{"*", "selinux-warning-controller", "-resourceclaim-controller", "service", "job-controller"})
	if !slices.Equal(got, []string{"selinux-warning-controller"}) {
		t.Errorf("%v", got)
	}
}

// unwatched are the types that client-go could not list or watch, as it names them.
var unwatched sync.Map

// TestMain takes out client-go's pause after an error: it keeps the time of
// the last one for the whole process, and bubbles do not share a time.
func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = []utilruntime.ErrorHandler{func(_ context.Context, err error, msg string, args ...any) {
		fmt.Println("client-go:", msg, err)
		if i := slices.Index(args, any("type")); i >= 0 && i+1 < len(args) {
			unwatched.Store(args[i+1], true)
		}
	}}
	m.Run()
}
