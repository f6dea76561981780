package cloudcontrollermanager

import (
	"errors"
	"fmt"
	"net"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/fake"
)

// TestUpstreamsProvider: a provider that was written without knowing of this manager
// works with it: upstream's own, by the older interfaces and by the newer one.
func TestUpstreamsProvider(t *testing.T) {
	for _, v2 := range []bool{false, true} {
		f := &fake.Cloud{
			EnableInstancesV2: v2, ExtID: map[types.NodeName]string{"n": "7"}, ProviderID: map[types.NodeName]string{"n": "fake://7"},
			InstanceTypes: map[types.NodeName]string{"n": "t1", "fake://7": "t1", "": "t1"},
			Zone:          cloudprovider.Zone{FailureDomain: "z", Region: "r"}, ExternalIP: net.IPv4(192, 0, 2, 3),
			Addresses:          []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.9"}},
			ExistsByProviderID: true, RouteMap: map[string]*fake.Route{},
		}
		with(t, newVendor(), nil, func(c *cluster) {
			c.node("n", ranged("10.42.1.0/24"))
			c.until("the node is initialised", func() (bool, error) { return c.initialised("n"), errors.New(c.events("n")) })
			n := c.get("n")
			got := fmt.Sprint(n.Spec.ProviderID, n.Labels["topology.kubernetes.io/zone"], n.Labels["node.kubernetes.io/instance-type"], n.Status.Addresses)
			if want := "fake://7zt1[{InternalIP 10.0.0.9} {Hostname n}]"; got != want {
				t.Errorf("v2 %t: %s, want %s", v2, got, want)
			}
			c.until("the route is there", func() (bool, error) {
				return c.network("n") == "False RouteCreated: RouteController created a route", nil
			})
			c.service("s")
			c.balanced("s")
			if got := c.read("s").Status.LoadBalancer.Ingress[0].IP; got != "192.0.2.3" {
				t.Error(got)
			}
			c.ready("n", corev1.ConditionFalse)
		}, func(cfg *Config) { cfg.Cloud = func() (cloudprovider.Interface, error) { return f, nil } })
	}
}
