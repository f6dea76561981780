package controllermanager

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"knarr/internal/apitest"
)

func (c *cluster) node(name string) {
	c.Helper()
	_, err := c.client.CoreV1().Nodes().Create(c.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	c.no(err)
	synctest.Wait() // taints may follow
	made, err := c.client.CoreV1().Nodes().Get(c.ctx, name, metav1.GetOptions{})
	c.no(err)
	made.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}}
	_, err = c.client.CoreV1().Nodes().UpdateStatus(c.ctx, made, metav1.UpdateOptions{})
	c.no(err)
	_, err = c.client.CoordinationV1().Leases("kube-node-lease").Create(c.ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: coordinationv1.LeaseSpec{RenewTime: new(metav1.NowMicro())}}, metav1.CreateOptions{})
	c.no(err)
}

// live lets time pass while the named node renews its lease.
func (c *cluster) live(name string, d time.Duration) {
	c.Helper()
	for range int(d / (10 * time.Second)) {
		time.Sleep(10 * time.Second)
		lease, err := c.client.CoordinationV1().Leases("kube-node-lease").Get(c.ctx, name, metav1.GetOptions{})
		c.no(err)
		lease.Spec.RenewTime = new(metav1.NowMicro())
		_, err = c.client.CoordinationV1().Leases("kube-node-lease").Update(c.ctx, lease, metav1.UpdateOptions{})
		c.no(err)
	}
}

// podOnBadNode makes two nodes, good and bad, and a ready pod on the second.
func (c *cluster) podOnBadNode() {
	c.Helper()
	c.node("good")
	c.node("bad")
	pod := &corev1.Pod{ObjectMeta: meta("p"), Spec: *template.Spec.DeepCopy()}
	pod.Spec.NodeName = "bad"
	_, err := c.client.CoreV1().Pods("default").Create(c.ctx, pod, metav1.CreateOptions{})
	c.no(err)
	c.makeReady()
}

func TestSilentNode(t *testing.T) {
	inCluster(t, []string{"node-lifecycle-controller", "taint-eviction-controller", "pod-garbage-collector-controller", "serviceaccount-controller"}, func(c *cluster) {
		c.podOnBadNode()
		state := func(name string) string {
			n, err := c.client.CoreV1().Nodes().Get(c.ctx, name, metav1.GetOptions{})
			c.no(err)
			s := ""
			for _, cond := range n.Status.Conditions {
				if cond.Type == corev1.NodeReady {
					s += fmt.Sprint(cond.Status, " ", cond.Reason)
				}
			}
			for _, t := range n.Spec.Taints {
				s += fmt.Sprint(" ", t.Key, ":", t.Effect)
			}
			return s
		}
		c.live("good", 40*time.Second)
		if got := state("bad"); got != "True " {
			t.Errorf("after 40 s: %s", got)
		}
		c.live("good", 30*time.Second)
		if got, want := state("bad"), "Unknown NodeStatusUnknown node.kubernetes.io/unreachable:NoSchedule node.kubernetes.io/unreachable:NoExecute"; got != want {
			t.Errorf("after 70 s: %s\nwant %s", got, want)
		}
		if got := state("good"); got != "True " {
			t.Errorf("the living node: %s", got)
		}
		p, err := c.client.CoreV1().Pods("default").Get(c.ctx, "p", metav1.GetOptions{})
		c.no(err)
		if p.Status.Conditions[0].Status != corev1.ConditionFalse {
			t.Errorf("the pod is still ready: %v", p.Status.Conditions)
		}
		c.live("good", 5*time.Minute) // what the pod tolerates by default
		p, err = c.client.CoreV1().Pods("default").Get(c.ctx, "p", metav1.GetOptions{})
		if err == nil && p.DeletionTimestamp == nil {
			t.Errorf("the pod is not evicted: %v", p.Spec.Tolerations)
		}
		c.no(c.client.CoreV1().Nodes().Delete(c.ctx, "bad", metav1.DeleteOptions{}))
		c.until("the pod of the removed node is gone", func() (bool, error) {
			_, err := c.client.CoreV1().Pods("default").Get(c.ctx, "p", metav1.GetOptions{})
			return apierrors.IsNotFound(err), nil
		})
	})
}

type refusing struct {
	http.RoundTripper
	what func(*http.Request) bool
}

func (r refusing) RoundTrip(req *http.Request) (*http.Response, error) {
	if r.what(req) {
		return nil, errors.New("refused")
	}
	return r.RoundTripper.RoundTrip(req)
}

// TestPodThatCannotBeMarked: a node that is silent is tainted though the status of one of
// its pods cannot be written.
func TestPodThatCannotBeMarked(t *testing.T) {
	configure := func(s *apitest.Server) Config {
		cfg := config(s, "node-lifecycle-controller", "serviceaccount-controller")
		clientFor := cfg.ClientFor
		cfg.ClientFor = func(account string) *rest.Config {
			c := clientFor(account)
			c.Transport = refusing{c.Transport, func(r *http.Request) bool {
				return r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/pods/p/status")
			}}
			return c
		}
		return cfg
	}
	inClusterOf(t, configure, func(c *cluster) {
		c.podOnBadNode()
		c.live("good", 70*time.Second)
		n, err := c.client.CoreV1().Nodes().Get(c.ctx, "bad", metav1.GetOptions{})
		c.no(err)
		if len(n.Spec.Taints) != 2 {
			t.Errorf("taints: %v", n.Spec.Taints)
		}
	})
}

// standing holds what watches of a resource say back while it is asked to, as one whose
// process or server stands still.
type standing struct {
	http.RoundTripper
	resource atomic.Pointer[string]
}

func (s *standing) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := s.RoundTripper.RoundTrip(r)
	if err == nil && r.URL.Query().Get("watch") != "" {
		resp.Body = standingBody{resp.Body, s, path.Base(r.URL.Path)}
	}
	return resp, err
}

type standingBody struct {
	io.ReadCloser
	s        *standing
	resource string
}

func (b standingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	for err == nil {
		if held := b.s.resource.Load(); held == nil || *held != b.resource {
			break
		}
		time.Sleep(time.Second)
	}
	return n, err
}

// TestOldNews: a node whose Lease is renewed stays Ready, and pods of a node that is well again
// stay, though the manager's watches have said so to nobody yet.
func TestOldNews(t *testing.T) {
	watches := &standing{}
	configure := func(s *apitest.Server) Config {
		cfg := config(s, "node-lifecycle-controller", "taint-eviction-controller", "serviceaccount-controller")
		watches.RoundTripper, cfg.Kube.Transport = cfg.Kube.Transport, watches
		return cfg
	}
	inClusterOf(t, configure, func(c *cluster) {
		c.podOnBadNode()
		bad := func() *corev1.Node {
			n, err := c.client.CoreV1().Nodes().Get(c.ctx, "bad", metav1.GetOptions{})
			c.no(err)
			return n
		}
		watches.resource.Store(new("leases"))
		for range 5 {
			c.live("good", 10*time.Second)
			c.live("bad", 10*time.Second)
		}
		if n := bad(); n.Status.Conditions[0].Status != corev1.ConditionTrue || len(n.Spec.Taints) > 0 {
			t.Errorf("renewed: %v %v", n.Status.Conditions, n.Spec.Taints)
		}
		watches.resource.Store(nil)
		c.live("good", 70*time.Second)
		n := bad()
		if n.Status.Conditions[0].Status != corev1.ConditionUnknown || len(n.Spec.Taints) != 2 {
			t.Fatalf("silent: %v %v", n.Status.Conditions, n.Spec.Taints)
		}
		watches.resource.Store(new("nodes"))
		n.Status.Conditions[0].Status = corev1.ConditionTrue
		n, err := c.client.CoreV1().Nodes().UpdateStatus(c.ctx, n, metav1.UpdateOptions{})
		c.no(err)
		n.Spec.Taints = nil
		_, err = c.client.CoreV1().Nodes().Update(c.ctx, n, metav1.UpdateOptions{})
		c.no(err)
		for range 20 { // pods tolerate 300 s
			c.live("good", 10*time.Second)
			c.live("bad", 10*time.Second)
		}
		p, err := c.client.CoreV1().Pods("default").Get(c.ctx, "p", metav1.GetOptions{})
		c.no(err)
		if p.DeletionTimestamp != nil {
			t.Errorf("the pod is deleted: %v", p.Status.Conditions)
		}
		watches.resource.Store(nil)
		time.Sleep(2 * time.Second) // until they are read on
	})
}
