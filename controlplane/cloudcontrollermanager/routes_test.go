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
	"k8s.io/apimachinery/pkg/types"
	cloudprovider "k8s.io/cloud-provider"
)

// ranged gives a node a range of pod addresses.
func ranged(cidr string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Spec.PodCIDR, n.Spec.PodCIDRs = cidr, []string{cidr} }
}

func (c *cluster) table() string {
	c.vendor.mu.Lock()
	defer c.vendor.mu.Unlock()
	var out []string
	for _, r := range c.routes {
		out = append(out, fmt.Sprintf("%s=%s", r.TargetNode, r.DestinationCIDR))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// network is what the node says of its routes.
func (c *cluster) network(name string) string {
	c.Helper()
	for _, cond := range c.get(name).Status.Conditions {
		if cond.Type == corev1.NodeNetworkUnavailable {
			return fmt.Sprint(cond.Status, " ", cond.Reason, ": ", cond.Message)
		}
	}
	return ""
}

func TestRoutes(t *testing.T) {
	v := newVendor()
	route := func(node, cidr string) *cloudprovider.Route {
		return &cloudprovider.Route{Name: node, TargetNode: types.NodeName(node), DestinationCIDR: cidr}
	}
	v.routes = []*cloudprovider.Route{route("left", "10.42.9.0/24"), route("others", "172.16.0.0/24"), route("", "10.42.8.0/24"), route("b", "10.42.2.0/24"),
		{Name: "hole", Blackhole: true, DestinationCIDR: "10.42.7.0/24"}}
	v.fail["c"] = errors.New("no quota")
	with(t, v, []string{"route"}, func(c *cluster) {
		c.until("the cluster's leftovers are removed", func() (bool, error) { return c.table() == "others=172.16.0.0/24", errors.New(c.table()) })
		c.node("a", plain, ranged("10.42.1.0/24"))
		c.node("b", plain, ranged("10.42.2.0/24"))
		c.node("c", plain, ranged("10.42.3.0/24"))
		c.node("none", plain)
		c.until("the routes are there", func() (bool, error) {
			return c.table() == "a=10.42.1.0/24 b=10.42.2.0/24 others=172.16.0.0/24", errors.New(c.table())
		})
		c.recorded("c", "route_controller Warning FailedToCreateRoute: Could not create route "+string(c.get("c").UID)+" 10.42.3.0/24 for node c after ")
		c.until("the nodes say so", func() (bool, error) {
			return c.network("a") == "False RouteCreated: RouteController created a route" && c.network("c") == "True NoRouteCreated: RouteController failed to create a route", nil
		})
		if got := c.network("none"); got != "" {
			t.Errorf("a node without a range says %s", got)
		}
		v.set(func() { v.fail["c"] = nil })
		c.until("the last one too", func() (bool, error) {
			return c.network("c") == "False RouteCreated: RouteController created a route", nil
		})
		lists := v.count("list")
		time.Sleep(100 * time.Second)
		synctest.Wait()
		if n := v.count("list") - lists; n < 9 || n > 11 {
			t.Errorf("listed %d times in ten periods", n)
		}
	})
}

// TestWatchedRoutes: with upstream's gate, what changes leads to a comparison, and
// hardly anything else.
func TestWatchedRoutes(t *testing.T) {
	v := newVendor()
	with(t, v, []string{"route"}, func(c *cluster) {
		c.node("a", plain, ranged("10.42.1.0/24"))
		c.until("the route is there", func() (bool, error) { return c.table() == "a=10.42.1.0/24", nil })
		time.Sleep(time.Minute)
		lists := v.count("list")
		for i := range 10 {
			c.patch("a", fmt.Sprintf(`{"metadata":{"annotations":{"beat":"%d"}}}`, i))
			time.Sleep(time.Minute)
		}
		synctest.Wait()
		if n := v.count("list") - lists; n != 0 {
			t.Errorf("listed %d times without a change", n)
		}
	}, func(cfg *Config) { cfg.WatchBasedRoutes = true })
}
