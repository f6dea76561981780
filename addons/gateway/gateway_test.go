package gateway

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"

	"knarr/internal/apitest"
)

// A world is an API server with the server's part, and a node's, each with its own rights.
type testWorld struct {
	t      *testing.T
	ctx    context.Context
	api    *apitest.Server
	client *kubernetes.Clientset
	plane  *fakePlane

	mu      sync.Mutex
	settled []PortsOf
}

func (w *testWorld) settle(of PortsOf) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.settled = append(w.settled, of)
}

func (w *testWorld) hasSettled() []PortsOf {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.settled)
}

var (
	nodeUser   = &user.DefaultInfo{Name: User("n1"), Groups: []string{Group, user.AllAuthenticated}}
	serverUser = &user.DefaultInfo{Name: serviceaccount.MakeUsername(Namespace, ServiceAccount), Groups: append(serviceaccount.MakeGroupNames(Namespace), user.AllAuthenticated)}
)

func inWorld(t *testing.T, nodeAddresses bool, story func(w *testWorld)) {
	inWorldWith(t, func(s *Status) { s.cfg.NodeAddresses = nodeAddresses }, story)
}

func inWorldWith(t *testing.T, change func(*Status), story func(w *testWorld)) {
	synctest.Test(t, func(t *testing.T) {
		api, stop := apitest.New(t)
		defer stop()
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		w := &testWorld{t: t, ctx: ctx, api: api, client: api.Client(t), plane: &fakePlane{}}
		g, err := New(Config{Kube: api.Config(nodeUser), NodeName: "n1", Plane: w.plane, Settled: w.settle})
		w.no(err)
		s, err := NewStatus(StatusConfig{Kube: api.Config(serverUser), Registrar: api.Config()})
		w.no(err)
		change(s)
		running, end := context.WithCancel(ctx)
		ended := make(chan error, 2)
		go func() { ended <- s.Run(running) }()
		time.Sleep(time.Second) // the roles come first
		go func() { ended <- g.Run(running) }()
		time.Sleep(time.Second)
		story(w)
		end()
		w.no(<-ended)
		w.no(<-ended)
	})
}

func (w *testWorld) no(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *testWorld) service(name string) {
	w.t.Helper()
	_, err := w.client.CoreV1().Services("default").Create(w.ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
	w.no(err)
}

// slice says where a Service is: addresses, those that end with "!" terminating.
func (w *testWorld) slice(service string, addresses ...string) {
	w.t.Helper()
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: service + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(8080))}},
	}
	for _, a := range addresses {
		a, ending := strings.CutSuffix(a, "!")
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}, Conditions: discoveryv1.EndpointConditions{
			Ready: new(!ending), Serving: new(true), Terminating: new(ending)}})
	}
	all := w.client.DiscoveryV1().EndpointSlices("default")
	_, err := all.Create(w.ctx, s, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = all.Update(w.ctx, s, metav1.UpdateOptions{})
	}
	w.no(err)
}

func (w *testWorld) ingress(name, host, service string, change ...func(*networkingv1.Ingress)) *networkingv1.Ingress {
	w.t.Helper()
	ing := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.IngressSpec{Rules: []networkingv1.IngressRule{{Host: host, IngressRuleValue: networkingv1.IngressRuleValue{
		HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{Path: "/", PathType: new(networkingv1.PathTypePrefix), Backend: networkingv1.IngressBackend{
			Service: &networkingv1.IngressServiceBackend{Name: service, Port: networkingv1.ServiceBackendPort{Number: 80}}}}}},
	}}}}}
	for _, c := range change {
		c(ing)
	}
	made, err := w.client.NetworkingV1().Ingresses("default").Create(w.ctx, ing, metav1.CreateOptions{})
	w.no(err)
	return made
}

func (w *testWorld) node(name, address string) {
	w.t.Helper()
	n, err := w.client.CoreV1().Nodes().Create(w.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	w.no(err)
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
	_, err = w.client.CoreV1().Nodes().UpdateStatus(w.ctx, n, metav1.UpdateOptions{})
	w.no(err)
}

func (w *testWorld) secret(name, host string) {
	w.t.Helper()
	cert, err := selfSigned(time.Now())
	w.no(err)
	of := &x509.Certificate{SerialNumber: cert.Leaf.SerialNumber, Subject: pkix.Name{CommonName: host}, DNSNames: []string{host}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(nil, of, of, cert.Leaf.PublicKey, cert.PrivateKey)
	w.no(err)
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	w.no(err)
	data := map[string][]byte{"tls.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), "tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})}
	_, err = w.client.CoreV1().Secrets("default").Create(w.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Type: corev1.SecretTypeTLS, Data: data}, metav1.CreateOptions{})
	w.no(err)
}

// serves waits a moment and compares what the data plane was told.
func (w *testWorld) serves(want ...string) {
	w.t.Helper()
	time.Sleep(5 * time.Second)
	if got := w.plane.serves(); got != strings.Join(want, "\n") {
		w.t.Errorf("served is\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

// events are those of an object, in the order of their texts.
func (w *testWorld) events(name string) string {
	w.t.Helper()
	time.Sleep(5 * time.Second)
	list, err := w.client.CoreV1().Events("").List(w.ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + name})
	w.no(err)
	var all []string
	for _, e := range list.Items {
		all = append(all, fmt.Sprintf("%s %s %s", e.Type, e.Reason, e.Message))
	}
	return strings.Join(all, "\n")
}

// An Ingress of the default class is served while it is there, follows its Service and
// its endpoints, and one of another class is left alone.
func TestIngress(t *testing.T) {
	inWorld(t, false, func(w *testWorld) {
		w.serves()
		w.service("web")
		w.slice("web", "10.42.0.5", "10.42.0.6!")
		w.ingress("i", "a.example", "web")
		w.ingress("others", "b.example", "web", func(ing *networkingv1.Ingress) { ing.Spec.IngressClassName = new("nginx") })
		w.serves("a.example/ -> default/web:80 10.42.0.5:8080 10.42.0.6:8080 terminating")
		applied := w.plane.compilations()
		w.slice("web", "10.42.0.7")
		w.serves("a.example/ -> default/web:80 10.42.0.7:8080")
		if w.plane.compilations() != applied {
			t.Error("a change of endpoints compiled everything")
		}
		w.ingress("late", "c.example", "later")
		w.serves("a.example/ -> default/web:80 10.42.0.7:8080", "c.example/ -> 503")
		w.service("later")
		w.serves("a.example/ -> default/web:80 10.42.0.7:8080", "c.example/ -> default/later:80")
		w.no(w.client.NetworkingV1().Ingresses("default").Delete(w.ctx, "late", metav1.DeleteOptions{}))
		w.no(w.client.NetworkingV1().Ingresses("default").Delete(w.ctx, "i", metav1.DeleteOptions{}))
		w.serves()
		if n := w.plane.listeners(); n != 0 {
			t.Error("something is listened at with no Ingress there")
		}
	})
}

// A hundred changes at once are few compilations.
func TestBurst(t *testing.T) {
	inWorld(t, false, func(w *testWorld) {
		w.service("web")
		before := w.plane.compilations()
		for i := range 100 {
			w.ingress(fmt.Sprint("i", i), fmt.Sprintf("h%d.example", i), "web")
		}
		time.Sleep(time.Second)
		if got := strings.Count(w.plane.serves(), "default/web:80"); got != 100 {
			t.Errorf("%d are served", got)
		}
		if n := w.plane.compilations() - before; n > 50 {
			t.Errorf("%d compilations", n)
		}
	})
}

// A certificate is shown as soon as its Secret is there, and another when that changes; no
// other Secret can be read.
func TestSecrets(t *testing.T) {
	inWorld(t, false, func(w *testWorld) {
		w.service("web")
		tls := func(ing *networkingv1.Ingress) {
			ing.Spec.TLS = []networkingv1.IngressTLS{{Hosts: []string{"a.example"}, SecretName: "cert"}}
		}
		w.ingress("i", "a.example", "web", tls)
		w.ingress("others", "b.example", "web", func(ing *networkingv1.Ingress) {
			ing.Spec.IngressClassName = new("nginx")
			ing.Spec.TLS = []networkingv1.IngressTLS{{SecretName: "private"}}
		})
		time.Sleep(5 * time.Second)
		if got := w.plane.certificate("a.example"); got != "knarr default certificate" {
			t.Errorf("before there is one: %s", got)
		}
		if got, want := w.events("i"), `Secret "cert" for TLS was not found, so that the default certificate is shown`; !strings.Contains(got, want) {
			t.Errorf("%s", got)
		}
		w.secret("cert", "a.example")
		w.secret("private", "b.example")
		time.Sleep(5 * time.Second)
		if got := w.plane.certificate("a.example"); got != "a.example" {
			t.Errorf("after: %s", got)
		}
		for _, who := range []user.Info{nodeUser, serverUser} {
			secrets := w.api.Client(t, who).CoreV1().Secrets("default")
			if _, err := secrets.Get(w.ctx, "cert", metav1.GetOptions{}); err != nil {
				t.Error(err)
			}
			if _, err := secrets.Get(w.ctx, "private", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
				t.Errorf("%s reads a Secret of another class' Ingress: %v", who.GetName(), err)
			}
			if _, err := secrets.List(w.ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
				t.Errorf("%s lists Secrets: %v", who.GetName(), err)
			}
			if _, err := w.api.Client(t, who).CoreV1().Secrets("").List(w.ctx, metav1.ListOptions{FieldSelector: "metadata.name=cert"}); !apierrors.IsForbidden(err) {
				t.Errorf("%s lists Secrets of all namespaces: %v", who.GetName(), err)
			}
			if err := secrets.Delete(w.ctx, "cert", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
				t.Errorf("%s deletes a Secret: %v", who.GetName(), err)
			}
		}
	})
}

// An Ingress has the addresses of the Service, which leads to the nodes that are ready.
func TestStatus(t *testing.T) {
	inWorld(t, false, func(w *testWorld) {
		w.node("n1", "10.0.0.1")
		w.node("n2", "10.0.0.2")
		services := w.client.CoreV1().Services(Namespace)
		if _, err := services.Get(w.ctx, serviceName, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("a Service without an Ingress: %v", err)
		}
		w.service("web")
		w.ingress("i", "a.example", "web")
		time.Sleep(5 * time.Second)
		svc, err := services.Get(w.ctx, serviceName, metav1.GetOptions{})
		w.no(err)
		slice, err := w.client.DiscoveryV1().EndpointSlices(Namespace).Get(w.ctx, serviceName+"-ipv4-0", metav1.GetOptions{})
		w.no(err)
		if len(slice.Endpoints) != 2 || slice.Endpoints[1].Addresses[0] != "10.0.0.2" || *slice.Endpoints[1].NodeName != "n2" || *slice.Ports[1].Port != 443 {
			t.Errorf("endpoints %v", slice.Endpoints)
		}
		svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "10.0.0.1", IPMode: new(corev1.LoadBalancerIPModeVIP)}}
		_, err = services.UpdateStatus(w.ctx, svc, metav1.UpdateOptions{})
		w.no(err)
		w.address("i", "10.0.0.1")
		w.no(w.client.NetworkingV1().Ingresses("default").Delete(w.ctx, "i", metav1.DeleteOptions{}))
		time.Sleep(5 * time.Second)
		if _, err := services.Get(w.ctx, serviceName, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the Service is there without an Ingress: %v", err)
		}
	})
}

func (w *testWorld) address(name, want string) {
	w.t.Helper()
	time.Sleep(5 * time.Second)
	ing, err := w.client.NetworkingV1().Ingresses("default").Get(w.ctx, name, metav1.GetOptions{})
	w.no(err)
	var all []string
	for _, a := range ing.Status.LoadBalancer.Ingress {
		all = append(all, a.IP)
	}
	if got := strings.Join(all, " "); got != want {
		w.t.Errorf("%s has the addresses %q, want %q", name, got, want)
	}
}

// Where nothing gives Services addresses, an Ingress has those of the nodes.
func TestNodeAddresses(t *testing.T) {
	inWorld(t, true, func(w *testWorld) {
		w.node("n1", "10.0.0.1")
		w.service("web")
		w.ingress("i", "a.example", "web")
		w.address("i", "10.0.0.1")
		w.node("n2", "10.0.0.2")
		w.address("i", "10.0.0.1 10.0.0.2")
	})
}

// What is not served is an event on the Ingress, once.
func TestEvents(t *testing.T) {
	inWorld(t, false, func(w *testWorld) {
		w.service("web")
		w.ingress("i", "a.example", "web", func(ing *networkingv1.Ingress) {
			ing.Annotations = map[string]string{"nginx.ingress.kubernetes.io/server-snippet": "x", "nginx.ingress.kubernetes.io/proxy-buffer-size": "8k"}
		})
		w.events("i")
		w.plane.fail(map[string]error{"ingress/http": errTaken})
		_, err := w.client.NetworkingV1().Ingresses("default").Patch(w.ctx, "i", types.MergePatchType, []byte(`{"metadata":{"annotations":{"other":"x"}}}`), metav1.PatchOptions{})
		w.no(err)
		got := strings.Split(w.events("i"), "\n")
		if len(got) != 3 {
			t.Errorf("%d events: %q", len(got), got)
		}
		for _, want := range []string{
			"Warning Rejected annotation nginx.ingress.kubernetes.io/server-snippet cannot be followed, so that every request is answered with 503",
			"Normal Ignored annotation nginx.ingress.kubernetes.io/proxy-buffer-size has no counterpart here",
			"Warning ListenFailed Node n1 does not serve ingress/http: port 80 is taken",
		} {
			if !strings.Contains(strings.Join(got, "\n"), want) {
				t.Errorf("%q is not among %q", want, got)
			}
		}
	})
}

// A route that the data plane cannot compile is told of on its own Ingress.
func TestDroppedRoute(t *testing.T) {
	inWorld(t, false, func(w *testWorld) {
		w.service("web")
		w.plane.fail(map[string]error{"Ingress default/bad": errors.New("it fails")})
		w.ingress("bad", "a.example", "web")
		w.ingress("good", "b.example", "web")
		if got, want := w.events("bad"), "Warning RouteFailed Node n1 does not serve Ingress default/bad: it fails"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if got := w.events("good"); got != "" {
			t.Errorf("of the other: %s", got)
		}
	})
}
