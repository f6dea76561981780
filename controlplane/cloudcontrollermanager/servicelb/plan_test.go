package servicelb

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func service(change ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{UID: "1"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}}}
	for _, c := range change {
		c(s)
	}
	return s
}

func held(s *corev1.Service)    { s.Finalizers = []string{finalizer} }
func classed(s *corev1.Service) { s.Spec.LoadBalancerClass = new("other") }
func local(s *corev1.Service)   { s.Spec.Type = corev1.ServiceTypeClusterIP }
func going(s *corev1.Service)   { s.DeletionTimestamp = new(metav1.NewTime(time.Unix(0, 0))) }

func TestPlan(t *testing.T) {
	done := func(change ...func(*corev1.Service)) *applied { return &applied{service(change...), true, nil, 7} }
	for name, c := range map[string]struct {
		service *corev1.Service
		last    *applied
		round   uint64
		want    action
	}{
		"new":                                {service(), nil, 7, ensure},
		"made by an earlier start":           {service(held), nil, 7, ensure},
		"of another implementation":          {service(classed), nil, 7, nothing},
		"of another implementation, before":  {service(classed, held), done(), 7, cleanUp},
		"no balancer":                        {service(local), nil, 7, nothing},
		"done":                               {service(held), done(), 7, nothing},
		"failed":                             {service(held), &applied{service: service()}, 7, ensure},
		"other nodes":                        {service(held), done(), 8, update},
		"going":                              {service(held, going), done(), 7, cleanUp},
		"going, after a start":               {service(held, going), nil, 7, cleanUp},
		"going, held by others only":         {service(going), nil, 7, nothing},
		"wants none any more":                {service(held, local), done(), 7, cleanUp},
		"wants none any more, after a start": {service(held, local), nil, 7, cleanUp},
		"wants none, freed of the finalizer": {service(local), done(), 7, cleanUp},
		"another port":                       {service(func(s *corev1.Service) { s.Spec.Ports[0].Port = 81 }), done(), 7, ensure},
		"another annotation":                 {service(func(s *corev1.Service) { s.Annotations = map[string]string{"a": "b"} }), done(), 7, ensure},
		"another label":                      {service(func(s *corev1.Service) { s.Labels = map[string]string{"a": "b"} }), done(), 7, nothing},
		"another selector":                   {service(func(s *corev1.Service) { s.Spec.Selector = map[string]string{"a": "b"} }), done(), 7, nothing},
		"another policy of external traffic": {service(func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }), done(), 7, ensure},
		"other sources":                      {service(func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8"} }), done(), 7, ensure},
		"its own status": {service(func(s *corev1.Service) {
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
		}), done(), 7, nothing},
		"the finalizer of another controller": {service(local, func(s *corev1.Service) { s.Finalizers = []string{"a.test/x"} }), nil, 7, nothing},
	} {
		if got := plan(c.service, c.last, c.round); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestEligible(t *testing.T) {
	label := func(value string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"node.kubernetes.io/exclude-from-external-load-balancers": value}}}
	}
	for name, c := range map[string]struct {
		node *corev1.Node
		want bool
	}{
		"plain":              {&corev1.Node{}, true},
		"labelled":           {label(""), false},
		"labelled true":      {label("true"), false},
		"labelled false":     {label("false"), true},
		"labelled otherwise": {label("perhaps"), false},
		"to be deleted":      {&corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: toBeDeleted}}}}, false},
		"going":              {&corev1.Node{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: new(metav1.Now())}}, false},
	} {
		if got := eligible(c.node); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestShown(t *testing.T) {
	var nodes []*corev1.Node
	for i := range 22 {
		nodes = append(nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i)}})
	}
	if got := shown(nodes); got != "[n0 n1 n2 n3 n4 n5 n6 n7 n8 n9 n10 n11 n12 n13 n14 n15 n16 n17 n18 n19 <2 more>]" || shown(nil) != "[]" {
		t.Error(got)
	}
}
