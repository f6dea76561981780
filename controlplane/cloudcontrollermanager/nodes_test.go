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
	cloudprovider "k8s.io/cloud-provider"
)

var nodeControllers = []string{"cloud-node", "cloud-node-lifecycle"}

func known(name string) machine {
	return machine{InstanceMetadata: cloudprovider.InstanceMetadata{
		ProviderID: "vendor://" + name, InstanceType: "large", Zone: "z1", Region: "r1",
		NodeAddresses:    []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeInternalIP, Address: "10.0.0.2"}, {Type: corev1.NodeExternalIP, Address: "192.0.2.9"}},
		AdditionalLabels: map[string]string{"vendor.example/rack": "7", "node.kubernetes.io/mine": "x"},
	}}
}

func (c *cluster) initialised(name string) bool {
	c.Helper()
	return !slices.ContainsFunc(c.get(name).Spec.Taints, func(t corev1.Taint) bool { return t.Key == "node.cloudprovider.kubernetes.io/uninitialized" })
}

func TestInitialise(t *testing.T) {
	v := newVendor()
	v.machines["n"] = known("n")
	with(t, v, nodeControllers, func(c *cluster) {
		c.node("n", func(n *corev1.Node) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "mine", Effect: corev1.TaintEffectNoSchedule})
			n.Annotations = map[string]string{"alpha.kubernetes.io/provided-node-ip": "10.0.0.2"}
		})
		c.recorded("n", "cloud-node-controller Normal Synced: Node synced successfully")
		n := c.get("n")
		if n.Spec.ProviderID != "vendor://n" || !c.initialised("n") || !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == "mine" }) {
			t.Errorf("spec %+v", n.Spec)
		}
		want := map[string]string{"kubernetes.io/hostname": "n", "vendor.example/rack": "7",
			"node.kubernetes.io/instance-type": "large", "beta.kubernetes.io/instance-type": "large",
			"topology.kubernetes.io/zone": "z1", "failure-domain.beta.kubernetes.io/zone": "z1",
			"topology.kubernetes.io/region": "r1", "failure-domain.beta.kubernetes.io/region": "r1"}
		if fmt.Sprint(n.Labels) != fmt.Sprint(want) {
			t.Errorf("labels %v, want %v", n.Labels, want)
		}
		if got := fmt.Sprint(n.Status.Addresses); got != "[{InternalIP 10.0.0.2} {ExternalIP 192.0.2.9} {Hostname n}]" {
			t.Errorf("addresses %s", got)
		}
	})
}

// TestAddresses: the addresses follow the provider's once in a period, not with each
// event of the node.
func TestAddresses(t *testing.T) {
	v := newVendor()
	v.machines["n"] = known("n")
	with(t, v, nodeControllers, func(c *cluster) {
		c.node("n", plain)
		c.until("the addresses are there", func() (bool, error) { return len(c.get("n").Status.Addresses) == 4, nil })
		asked := v.count("metadata n")
		for i := range 20 {
			c.patch("n", fmt.Sprintf(`{"metadata":{"annotations":{"beat":"%d"}}}`, i))
			synctest.Wait()
		}
		if n := v.count("metadata n"); n != asked {
			t.Errorf("events of the node led to %d questions", n-asked)
		}
		m := known("n")
		m.NodeAddresses = m.NodeAddresses[:1]
		v.set(func() { v.machines["n"] = m })
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if got := fmt.Sprint(c.get("n").Status.Addresses); got != "[{InternalIP 10.0.0.1} {Hostname n}]" {
			t.Error(got)
		}
		c.patch("n", `{"metadata":{"labels":{"failure-domain.beta.kubernetes.io/zone":"z2"}}}`)
		c.until("the stable label follows", func() (bool, error) { return c.get("n").Labels["topology.kubernetes.io/zone"] == "z2", nil })
	})
}

// TestNotInitialised: a node that the provider does not answer for keeps its taint,
// and keeps no other from being initialised for ever.
func TestNotInitialised(t *testing.T) {
	v := newVendor()
	v.machines["good"], v.machines["hangs"], v.machines["wrong"] = known("good"), known("hangs"), known("wrong")
	bare := known("bare")
	bare.ProviderID = ""
	v.machines["bare"] = bare
	v.hang["hangs"], v.fail["fails"] = true, errors.New("quota exceeded")
	with(t, v, nodeControllers, func(c *cluster) {
		for _, name := range []string{"hangs", "fails", "unknown", "bare"} {
			c.node(name)
		}
		c.node("wrong", func(n *corev1.Node) {
			n.Annotations = map[string]string{"alpha.kubernetes.io/provided-node-ip": "10.9.9.9"}
		})
		c.node("good")
		c.until("the good one is initialised", func() (bool, error) { return c.initialised("good"), nil })
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		for _, name := range []string{"hangs", "fails", "unknown", "bare", "wrong"} {
			if c.initialised(name) {
				t.Errorf("%s has lost its taint", name)
			}
		}
		asked := v.count("metadata fails")
		for i := range 50 {
			c.patch("fails", fmt.Sprintf(`{"metadata":{"annotations":{"beat":"%d"}}}`, i))
			synctest.Wait()
		}
		if n := v.count("metadata fails") - asked; n > 1 {
			t.Errorf("events of a node that is not initialised led to %d questions", n)
		}
		v.set(func() { v.hang["hangs"], v.fail["fails"] = false, nil; v.machines["fails"] = known("fails") })
		c.until("they are initialised", func() (bool, error) { return c.initialised("hangs") && c.initialised("fails"), nil })
	})
}

// exists reports whether the Node is there, and is that one.
func (c *cluster) exists(n *corev1.Node) bool {
	c.Helper()
	got, err := c.client.CoreV1().Nodes().Get(c.ctx, n.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false
	}
	c.no(err)
	return got.UID == n.UID
}

func TestVanishedInstance(t *testing.T) {
	v := newVendor()
	v.machines["stays"], v.machines["fails"], v.machines["hangs"] = known("stays"), known("fails"), known("hangs")
	v.fail["fails"], v.hang["hangs"] = errors.New("throttled"), true
	with(t, v, []string{"cloud-node-lifecycle"}, func(c *cluster) {
		ready, stays, fails, hangs := c.node("ready", plain), c.node("stays", plain), c.node("fails", plain), c.node("hangs", plain)
		gone := c.node("gone", plain)
		for _, n := range []string{"stays", "fails", "hangs", "gone"} {
			c.ready(n, corev1.ConditionUnknown)
		}
		c.until("the node is deleted", func() (bool, error) { return !c.exists(gone), nil })
		c.recorded("gone", "cloud-node-lifecycle-controller Normal DeletingNode: Deleting node gone because it does not exist in the cloud provider")
		if n := v.count("exists gone"); n < 2 {
			t.Errorf("deleted after %d answer", n)
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		for _, n := range []*corev1.Node{ready, stays, fails, hangs} {
			if !c.exists(n) {
				t.Errorf("node %s was deleted", n.Name)
			}
		}
		if v.count("exists ready") > 0 {
			t.Error("the provider was asked about a ready node")
		}
	})
}

// TestLie: a provider that has lost an instance for a moment costs no node.
func TestLie(t *testing.T) {
	v := newVendor()
	with(t, v, []string{"cloud-node-lifecycle"}, func(c *cluster) {
		n := c.node("n", plain)
		c.ready("n", corev1.ConditionFalse)
		c.until("it was asked once", func() (bool, error) { return v.count("exists n") == 1, nil })
		v.set(func() { v.machines["n"] = known("n") })
		time.Sleep(time.Minute)
		synctest.Wait()
		if !c.exists(n) {
			t.Fatal("deleted after one answer that was not true")
		}
		v.set(func() { delete(v.machines, "n") })
		c.until("it was asked again", func() (bool, error) {
			m := v.count("exists n")
			time.Sleep(5 * time.Second)
			return v.count("exists n") > m, nil
		})
	})
}

// TestReadyMeanwhile: a node that is ready again, or another one of its name, is not
// deleted for what the provider answered before.
func TestReadyMeanwhile(t *testing.T) {
	for _, anew := range []bool{false, true} {
		v := newVendor()
		with(t, v, []string{"cloud-node-lifecycle"}, func(c *cluster) {
			n := c.node("n", plain)
			c.ready("n", corev1.ConditionFalse)
			c.until("it was asked once", func() (bool, error) { return v.count("exists n") == 1, nil })
			if anew {
				c.no(c.client.CoreV1().Nodes().Delete(c.ctx, "n", metav1.DeleteOptions{}))
				n = c.node("n", plain)
			} else {
				c.ready("n", corev1.ConditionTrue)
			}
			time.Sleep(time.Hour)
			synctest.Wait()
			if !c.exists(n) {
				t.Errorf("anew %t: deleted", anew)
			}
		})
	}
}

func TestShutdown(t *testing.T) {
	v := newVendor()
	m := known("n")
	m.off = true
	v.machines["n"] = m
	with(t, v, nodeControllers, func(c *cluster) {
		n := c.node("n", plain)
		off := func() bool {
			for _, t := range c.get("n").Spec.Taints {
				if t.Key == "node.cloudprovider.kubernetes.io/shutdown" && t.Effect == corev1.TaintEffectNoSchedule {
					return true
				}
			}
			return false
		}
		synctest.Wait()
		if off() {
			t.Error("a ready node is tainted")
		}
		c.ready("n", corev1.ConditionUnknown)
		c.until("the taint is there", func() (bool, error) { return off(), nil })
		c.ready("n", corev1.ConditionTrue)
		c.until("the taint is gone", func() (bool, error) { return !off(), nil })
		if !c.exists(n) || strings.Contains(c.events("n"), "Deleting") {
			t.Error("a machine that is switched off was deleted")
		}
	})
}
