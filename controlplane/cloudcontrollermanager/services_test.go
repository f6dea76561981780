package cloudcontrollermanager

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/api"
)

const finalizer = "service.kubernetes.io/load-balancer-cleanup"

func (c *cluster) service(name string, change ...func(*corev1.Service)) *corev1.Service {
	c.Helper()
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}}}
	for _, f := range change {
		f(s)
	}
	got, err := c.client.CoreV1().Services("default").Create(c.ctx, s, metav1.CreateOptions{})
	c.no(err)
	return got
}

// read gives a Service; nil if it is not there.
func (c *cluster) read(name string) *corev1.Service {
	c.Helper()
	s, err := c.client.CoreV1().Services("default").Get(c.ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	c.no(err)
	return s
}

func (c *cluster) change(name, body string) {
	c.Helper()
	_, err := c.client.CoreV1().Services("default").Patch(c.ctx, name, types.MergePatchType, []byte(body), metav1.PatchOptions{})
	c.no(err)
}

func (c *cluster) drop(name string) {
	c.Helper()
	c.no(c.client.CoreV1().Services("default").Delete(c.ctx, name, metav1.DeleteOptions{}))
}

// behind are the nodes of a Service's load balancer; "" without one.
func (c *cluster) behind(s *corev1.Service) string {
	c.vendor.mu.Lock()
	defer c.vendor.mu.Unlock()
	return c.balancers[string(s.UID)]
}

// balanced waits until the Service has its address.
func (c *cluster) balanced(name string) {
	c.Helper()
	c.until("the balancer's address is there", func() (bool, error) {
		s := c.read(name)
		return len(s.Status.LoadBalancer.Ingress) == 1 && slices.Contains(s.Finalizers, finalizer), nil
	})
}

var services = []string{"service-lb-controller"}

// TestBalancer leads a Service from its making to its end.
func TestBalancer(t *testing.T) {
	v := newVendor()
	with(t, v, services, func(c *cluster) {
		c.node("b", plain)
		c.node("a", plain)
		c.node("out", plain, func(n *corev1.Node) {
			n.Labels = map[string]string{"node.kubernetes.io/exclude-from-external-load-balancers": ""}
		})
		c.node("going", plain, func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}}
		})
		s := c.service("s", func(s *corev1.Service) { s.Finalizers = []string{"example.com/mine"} })
		c.service("classed", func(s *corev1.Service) { s.Spec.LoadBalancerClass = new("example.com/other") })
		c.service("plain", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP })
		c.balanced("s")
		if got := c.behind(s); got != "[a b]" {
			t.Errorf("behind it are %s", got)
		}
		c.recorded("s", "service-controller Normal EnsuringLoadBalancer: Ensuring load balancer")
		c.recorded("s", "service-controller Normal EnsuredLoadBalancer: Ensured load balancer")

		c.node("d", plain)
		c.until("the new node is behind it", func() (bool, error) { return c.behind(s) == "[a b d]", nil })
		c.recorded("s", "Normal UpdatedLoadBalancer: Updated load balancer with new hosts")
		updates, ensures := v.count("update s"), v.count("ensure s")
		for i := range 10 { // what is nothing to a balancer
			c.patch("a", fmt.Sprintf(`{"metadata":{"annotations":{"beat":"%d"}}}`, i))
			c.change("s", fmt.Sprintf(`{"metadata":{"labels":{"beat":"%d"}}}`, i))
			synctest.Wait()
		}
		if v.count("update s") != updates || v.count("ensure s") != ensures {
			t.Error("the provider was called without a change")
		}
		c.change("s", `{"spec":{"ports":[{"port":81}]}}`)
		c.until("the port is changed", func() (bool, error) { return v.count("ensure s") == ensures+1, nil })

		c.drop("s")
		c.until("the balancer is deleted", func() (bool, error) { return c.behind(s) == "", nil })
		c.until("the finalizer is off", func() (bool, error) { return !slices.Contains(c.read("s").Finalizers, finalizer), nil })
		c.recorded("s", "Normal DeletingLoadBalancer: Deleting load balancer")
		c.recorded("s", "Normal DeletedLoadBalancer: Deleted load balancer")
		if got := c.read("s").Finalizers; fmt.Sprint(got) != "[example.com/mine]" {
			t.Errorf("finalizers %v", got)
		}
		c.change("s", `{"metadata":{"finalizers":null}}`)
		c.until("the Service is gone", func() (bool, error) { return c.read("s") == nil, nil })
		time.Sleep(time.Minute)
		if v.count("ensure classed") != 0 || v.count("ensure plain") != 0 || v.count("ensure s") != ensures+1 {
			t.Errorf("calls %v", v.calls)
		}
	})
}

// TestNoMoreBalancer: a Service that wants none any more loses it, its status and the
// finalizer, and stays.
func TestNoMoreBalancer(t *testing.T) {
	v := newVendor()
	with(t, v, services, func(c *cluster) {
		c.node("n", plain)
		time.Sleep(time.Second) // the node is known: events of one instant would have one name
		s := c.service("s")
		c.balanced("s")
		c.no(c.client.CoreV1().Nodes().Delete(c.ctx, "n", metav1.DeleteOptions{}))
		c.recorded("s", "Warning UnAvailableLoadBalancer: There are no available nodes for LoadBalancer")
		c.change("s", `{"spec":{"type":"ClusterIP"}}`)
		c.until("it is as any other", func() (bool, error) {
			now := c.read("s")
			return c.behind(s) == "" && len(now.Finalizers) == 0 && len(now.Status.LoadBalancer.Ingress) == 0, nil
		})
		c.drop("s")
		c.until("it is gone", func() (bool, error) { return c.read("s") == nil, nil })
	})
}

// TestBalancerFails: a provider that fails is asked again, ever more rarely, or when
// it says; in the end all is well, and the deletion waits as well.
func TestBalancerFails(t *testing.T) {
	v := newVendor()
	v.fail["s"], v.fail["waits"] = errors.New("no quota"), fmt.Errorf("wrapped: %w", api.NewRetryError("still made", 2*time.Second))
	with(t, v, services, func(c *cluster) {
		s := c.service("s")
		c.service("waits")
		c.recorded("s", "Warning SyncLoadBalancerFailed: Error syncing load balancer: failed to ensure load balancer: no quota")
		time.Sleep(60 * time.Second)
		if n, slow := v.count("ensure s"), v.count("ensure waits"); n < 3 || n > 5 || slow < 29 || slow > 33 {
			t.Errorf("%d tries, and %d of what says when", n, slow)
		}
		v.set(func() { v.fail["s"], v.fail["waits"] = nil, nil })
		c.balanced("s")
		c.balanced("waits")
		v.set(func() { v.fail["s"] = errors.New("in use") })
		c.node("n", plain)
		c.recorded("s", "Warning UpdateLoadBalancerFailed: Error updating load balancer with new hosts [n] [node names limited, total number of nodes: 1], error: in use")
		c.drop("s")
		c.recorded("s", "Warning SyncLoadBalancerFailed: Error syncing load balancer: failed to check if load balancer exists before cleanup: in use")
		if c.read("s") == nil || c.behind(s) == "" {
			t.Fatal("the Service is gone, its balancer is not")
		}
		v.set(func() { v.fail["s"] = nil })
		c.until("both are gone", func() (bool, error) { return c.read("s") == nil && c.behind(s) == "", nil })
	})
}

// TestDeletedMeanwhile: a Service is deleted while its balancer is being made.
func TestDeletedMeanwhile(t *testing.T) {
	v := newVendor()
	with(t, v, services, func(c *cluster) {
		v.making = func(s *corev1.Service) { c.drop(s.Name) }
		s := c.service("s")
		c.until("both are gone", func() (bool, error) { return c.read("s") == nil && c.behind(s) == "", nil })
		if v.count("ensure s") != 1 || v.count("delete s") != 1 {
			t.Errorf("calls %v", v.calls)
		}
	})
}

// TestMadeAnew: a Service that somebody freed of the finalizer is gone, and another of
// its name is there, while the balancer is being made: none is left over.
func TestMadeAnew(t *testing.T) {
	v := newVendor()
	with(t, v, services, func(c *cluster) {
		var second *corev1.Service
		v.making = func(s *corev1.Service) {
			if second == nil {
				c.change(s.Name, `{"metadata":{"finalizers":null}}`)
				c.drop(s.Name)
				second = c.service(s.Name)
			}
		}
		first := c.service("s")
		c.until("only the second has a balancer", func() (bool, error) { return second != nil && c.behind(first) == "" && c.behind(second) == "[]", nil })
		c.balanced("s")
		if c.read("s").UID != second.UID {
			t.Error("not the second")
		}
	})
}

// TestElsewhere: a balancer that others implement is theirs; the finalizer is kept and
// taken off all the same.
func TestElsewhere(t *testing.T) {
	v := newVendor()
	v.fail["s"] = cloudprovider.ImplementedElsewhere
	with(t, v, services, func(c *cluster) {
		c.service("s")
		c.until("the finalizer is on", func() (bool, error) { return slices.Contains(c.read("s").Finalizers, finalizer), nil })
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := v.count("ensure s"); n != 1 || strings.Contains(c.events("s"), "Warning Sync") {
			t.Errorf("%d calls; events %s", n, c.events("s"))
		}
	})
}
