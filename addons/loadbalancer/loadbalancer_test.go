package loadbalancer

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/internal/apitest"
)

// A Service gets the nodes' addresses, follows nodes and endpoints, and loses them
// with its type; one that clashes is told of by an event, and has its turn after.
func TestController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, stop := apitest.New(t)
		defer stop()
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		client := api.Client(t)
		no := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		addNode := func(name, address string) {
			t.Helper()
			n, err := client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			no(err)
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
			n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
			_, err = client.CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{})
			no(err)
		}
		services := client.CoreV1().Services("default")
		add := func(name string, class *string) {
			t.Helper()
			_, err := services.Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: class, Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
			no(err)
		}
		patch := func(name, body string) {
			t.Helper()
			_, err := services.Patch(ctx, name, types.MergePatchType, []byte(body), metav1.PatchOptions{})
			no(err)
		}
		want := func(name, addresses string) {
			t.Helper()
			time.Sleep(time.Second)
			s, err := services.Get(ctx, name, metav1.GetOptions{})
			no(err)
			var got []string
			for _, in := range s.Status.LoadBalancer.Ingress {
				got = append(got, in.IP)
				if *in.IPMode != corev1.LoadBalancerIPModeVIP {
					t.Errorf("%s: mode %s", name, *in.IPMode)
				}
			}
			if text := strings.Join(got, " "); text != addresses {
				t.Errorf("%s has %q, want %q", name, text, addresses)
			}
		}
		addNode("n1", "10.0.0.1")
		c, err := New(Config{Kube: api.Config(), Registrar: api.Config()})
		no(err)
		running, end := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- c.Run(running) }()

		add("web", nil)
		want("web", "10.0.0.1")
		addNode("n2", "10.0.0.2")
		want("web", "10.0.0.1 10.0.0.2")
		add("others", new("example.com/lb"))
		want("others", "")
		time.Sleep(time.Second)
		add("second", new(Class))
		want("second", "")
		events, err := client.CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=second"})
		no(err)
		if len(events.Items) != 1 || events.Items[0].Reason != "SyncLoadBalancerFailed" || !strings.Contains(events.Items[0].Message, "port 80/TCP at 10.0.0.1 is Service default/web's") {
			t.Errorf("events %v", events.Items)
		}
		patch("web", `{"spec":{"externalTrafficPolicy":"Local"}}`)
		want("web", "")
		want("second", "10.0.0.1 10.0.0.2")
		_, err = client.DiscoveryV1().EndpointSlices("default").Create(ctx, &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: new(int32(8080))}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.42.0.5"}, NodeName: new("n2"), Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}},
		}, metav1.CreateOptions{})
		no(err)
		no(services.Delete(ctx, "second", metav1.DeleteOptions{}))
		want("web", "10.0.0.2")
		patch("web", `{"spec":{"type":"ClusterIP","externalTrafficPolicy":null}}`)
		want("web", "")
		end()
		no(<-ended)
	})
}
