package controllermanager

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// served gives pods addresses and readiness, as kubelets do.
func (c *cluster) served(n int) {
	c.Helper()
	for i := range n {
		p := &corev1.Pod{ObjectMeta: meta(fmt.Sprintf("p%03d", i)), Spec: *template.Spec.DeepCopy()}
		p.Labels, p.Spec.NodeName = template.Labels, "n1"
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}
		made, err := c.client.CoreV1().Pods("default").Create(c.ctx, p, metav1.CreateOptions{})
		c.no(err)
		ip := fmt.Sprintf("10.42.0.%d", i+1)
		made.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}}
		_, err = c.client.CoreV1().Pods("default").UpdateStatus(c.ctx, made, metav1.UpdateOptions{})
		c.no(err)
	}
}

func TestServiceEndpoints(t *testing.T) {
	inCluster(t, []string{"endpoints-controller", "endpointslice-controller", "serviceaccount-controller"}, func(c *cluster) {
		_, err := c.client.CoreV1().Services("default").Create(c.ctx, &corev1.Service{ObjectMeta: meta("web"), Spec: corev1.ServiceSpec{
			Selector: template.Labels, Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromString("http")}}}}, metav1.CreateOptions{})
		c.no(err)
		state := func() (ready, slices int, summary string) {
			list, err := c.client.DiscoveryV1().EndpointSlices("default").List(c.ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=web"})
			c.no(err)
			for _, s := range list.Items {
				for _, ep := range s.Endpoints {
					if *ep.Conditions.Ready && *s.Ports[0].Port == 8080 && *ep.NodeName == "n1" {
						ready++
					}
				}
			}
			ep, err := c.client.CoreV1().Endpoints("default").Get(c.ctx, "web", metav1.GetOptions{})
			if err == nil && len(ep.Subsets) > 0 {
				summary = fmt.Sprint(len(ep.Subsets[0].Addresses), "+", len(ep.Subsets[0].NotReadyAddresses))
			}
			return ready, len(list.Items), summary
		}
		is := func(ready, slices int, summary string) func() (bool, error) {
			return func() (bool, error) {
				r, s, e := state()
				return r == ready && s == slices && e == summary, fmt.Errorf("%d endpoints in %d slices, endpoints %s", r, s, e)
			}
		}
		c.until("an empty service has one empty slice", is(0, 1, ""))
		c.served(150)
		c.until("150 endpoints", is(150, 2, "150+0"))
		_, err = c.client.CoreV1().Pods("default").Patch(c.ctx, "p007", types.MergePatchType, []byte(`{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`), metav1.PatchOptions{}, "status")
		c.no(err)
		c.until("one is not ready", is(149, 2, "149+1"))
		c.no(c.client.CoreV1().Pods("default").DeleteCollection(c.ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}, metav1.ListOptions{}))
		c.until("none is left", is(0, 1, ""))
		c.no(c.client.CoreV1().Services("default").Delete(c.ctx, "web", metav1.DeleteOptions{}))
		c.until("the endpoints are gone", func() (bool, error) {
			_, err := c.client.CoreV1().Endpoints("default").Get(c.ctx, "web", metav1.GetOptions{})
			return apierrors.IsNotFound(err), err
		})
	})
}

// TestZonesOfEndpoints: an endpoint is in its node's zone, also when the node comes
// after the pod, or moves.
func TestZonesOfEndpoints(t *testing.T) {
	inCluster(t, []string{"endpointslice-controller", "serviceaccount-controller"}, func(c *cluster) {
		c.create(core+"services", "{metadata: {name: web}, spec: {selector: {app: web}, trafficDistribution: PreferSameNode, ports: [{port: 80, targetPort: 8080}]}}")
		c.backend(1)
		is := func(want string) {
			c.Helper()
			c.until(want, func() (bool, error) {
				list, err := c.client.DiscoveryV1().EndpointSlices("default").List(c.ctx, metav1.ListOptions{})
				c.no(err)
				got := ""
				for _, s := range list.Items {
					for _, ep := range s.Endpoints {
						if ep.Zone != nil {
							got += *ep.Zone
						}
						if ep.Hints != nil {
							got += fmt.Sprint(ep.Hints.ForZones, ep.Hints.ForNodes)
						}
					}
				}
				return got == want, fmt.Errorf("got %s", got)
			})
		}
		is("[] [{n1}]")
		c.create(nodes, "{metadata: {name: n1, labels: {topology.kubernetes.io/zone: a}}}")
		is("a[{a}] [{n1}]")
		c.merge(nodes+"/n1", `{"metadata":{"labels":{"topology.kubernetes.io/zone":"b"}}}`)
		is("b[{b}] [{n1}]")
	})
}

// TestTopologyOfEndpoints: the annotation has each zone of ready nodes get its share
// of the endpoints, for as long as there are several.
func TestTopologyOfEndpoints(t *testing.T) {
	inCluster(t, []string{"endpointslice-controller", "serviceaccount-controller"}, func(c *cluster) {
		for n, zone := range map[string]string{"n1": "a", "n2": "b"} {
			c.create(nodes, "{metadata: {name: "+n+", labels: {topology.kubernetes.io/zone: "+zone+"}}, status: {allocatable: {cpu: 2}}}")
			c.condition(n, corev1.NodeReady, corev1.ConditionTrue)
		}
		c.create(core+"services", "{metadata: {name: web, annotations: {service.kubernetes.io/topology-mode: Auto}}, spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}}")
		for i := range 4 {
			c.backend(i + 1)        // all of them on n1
			time.Sleep(time.Second) // events of one moment bear one name
		}
		is := func(a, b int) {
			c.Helper()
			c.until(fmt.Sprint(a, " for a and ", b, " for b"), func() (bool, error) {
				list, err := c.client.DiscoveryV1().EndpointSlices("default").List(c.ctx, metav1.ListOptions{})
				c.no(err)
				count := map[string]int{}
				for _, s := range list.Items {
					for _, ep := range s.Endpoints {
						if ep.Hints != nil {
							count[ep.Hints.ForZones[0].Name]++
						}
					}
				}
				return count["a"] == a && count["b"] == b, fmt.Errorf("got %v", count)
			})
		}
		is(2, 2)
		if m := c.eventOf("web", "TopologyAwareHintsEnabled"); m != "Topology Aware Hints has been enabled, addressType: IPv4" {
			t.Error(m)
		}
		c.condition("n2", corev1.NodeReady, corev1.ConditionFalse)
		is(0, 0)
		c.condition("n2", corev1.NodeReady, corev1.ConditionTrue)
		is(2, 2)
		c.merge(core+"services/web", `{"metadata":{"annotations":null}}`)
		is(0, 0)
	})
}

// TestMirroredEndpoints: what a user writes into the Endpoints of a Service
// without a selector is there as slices, until it is not.
func TestMirroredEndpoints(t *testing.T) {
	inCluster(t, []string{"endpointslice-mirroring-controller", "serviceaccount-controller"}, func(c *cluster) {
		svc, err := c.client.CoreV1().Services("default").Create(c.ctx, &corev1.Service{ObjectMeta: meta("db"), Spec: corev1.ServiceSpec{
			Ports: []corev1.ServicePort{{Port: 5432}}}}, metav1.CreateOptions{})
		c.no(err)
		are := func(want string) func() (bool, error) {
			return func() (bool, error) {
				list, err := c.client.DiscoveryV1().EndpointSlices("default").List(c.ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=db"})
				c.no(err)
				got := ""
				for _, s := range list.Items {
					got += fmt.Sprint(*s.Ports[0].Port, s.Endpoints[0].Addresses)
				}
				return got == want, fmt.Errorf("slices: %s", got)
			}
		}
		ep, err := c.client.CoreV1().Endpoints("default").Create(c.ctx, &corev1.Endpoints{ObjectMeta: meta("db"), Subsets: []corev1.EndpointSubset{{
			Addresses: []corev1.EndpointAddress{{IP: "10.1.2.3"}}, Ports: []corev1.EndpointPort{{Port: 5432}}}}}, metav1.CreateOptions{})
		c.no(err)
		c.until("a slice", are("5432 [10.1.2.3]"))
		ep.Subsets[0].Addresses[0].IP = "10.1.2.4"
		ep, err = c.client.CoreV1().Endpoints("default").Update(c.ctx, ep, metav1.UpdateOptions{})
		c.no(err)
		c.until("another address", are("5432 [10.1.2.4]"))
		svc.Spec.Selector = template.Labels
		svc, err = c.client.CoreV1().Services("default").Update(c.ctx, svc, metav1.UpdateOptions{})
		c.no(err)
		c.until("a selector takes over", are(""))
		svc.Spec.Selector = nil
		_, err = c.client.CoreV1().Services("default").Update(c.ctx, svc, metav1.UpdateOptions{})
		c.no(err)
		c.until("and gives back", are("5432 [10.1.2.4]"))
		c.no(c.client.CoreV1().Endpoints("default").Delete(c.ctx, ep.Name, metav1.DeleteOptions{}))
		c.until("nothing is left", are(""))
	})
}

// TestServiceCIDRs: a range is ready soon after it was made, gives Services their
// addresses, and stays for as long as one of them has an address of no other range.
func TestServiceCIDRs(t *testing.T) {
	inCluster(t, []string{"service-cidr-controller", "serviceaccount-controller"}, func(c *cluster) {
		ranges := c.client.NetworkingV1().ServiceCIDRs()
		ready := func(name string) string {
			got, err := ranges.Get(c.ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return "gone"
			}
			c.no(err)
			for _, cond := range got.Status.Conditions {
				return fmt.Sprint(cond.Status, " ", cond.Reason)
			}
			return ""
		}
		define := func(name, cidr string) {
			_, err := ranges.Create(c.ctx, &networkingv1.ServiceCIDR{ObjectMeta: meta(name), Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{cidr}}}, metav1.CreateOptions{})
			c.no(err)
			c.until(name+" is ready", func() (bool, error) { s := ready(name); return s == "True ", fmt.Errorf("%s is %q", name, s) })
		}
		create := func(name, ip string) {
			_, err := c.client.CoreV1().Services("default").Create(c.ctx, &corev1.Service{ObjectMeta: meta(name),
				Spec: corev1.ServiceSpec{ClusterIP: ip, Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
			c.no(err)
		}
		define("more", "10.50.0.0/24")
		create("web", "10.50.0.9")
		c.no(ranges.Delete(c.ctx, "more", metav1.DeleteOptions{}))
		c.until("it is used", func() (bool, error) { s := ready("more"); return s == "False Terminating", fmt.Errorf("it is %q", s) })
		time.Sleep(time.Hour)
		if s := ready("more"); s != "False Terminating" {
			t.Errorf("a range whose address is in use is %q", s)
		}
		if _, err := c.client.CoreV1().Services("default").Create(c.ctx, &corev1.Service{ObjectMeta: meta("late"),
			Spec: corev1.ServiceSpec{ClusterIP: "10.50.0.10", Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{}); err == nil {
			t.Error("a range that is being deleted gave an address")
		}
		// A wider range takes its addresses over.
		define("wider", "10.50.0.0/16")
		c.until("it is gone", func() (bool, error) { s := ready("more"); return s == "gone", fmt.Errorf("it is %q", s) })
		c.no(ranges.Delete(c.ctx, "wider", metav1.DeleteOptions{}))
		c.no(c.client.CoreV1().Services("default").Delete(c.ctx, "web", metav1.DeleteOptions{}))
		c.until("the wider is gone with its last address", func() (bool, error) { s := ready("wider"); return s == "gone", fmt.Errorf("it is %q", s) })
	})
}
