package apiserver_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"knarr/controlplane/apiserver"
	"knarr/controlplane/apiserver/storage"
	"knarr/internal/apitest"
)

// Servers are started, one after the other and as upstream's, with other ranges of Services
// on the same store: the first range stays the cluster's, an Event says that the flags are
// others, and a second family is added.
func TestAnotherServiceRange(t *testing.T) {
	store := storage.NewMemory()
	t.Cleanup(func() { store.Close() })
	with := func(do func(kubernetes.Interface), cidrs ...string) {
		t.Helper()
		s, stop := apitest.New(t, func(c *apiserver.Config) {
			c.Store, c.ServiceCIDRs = store, nil
			for _, text := range cidrs {
				c.ServiceCIDRs = append(c.ServiceCIDRs, netip.MustParsePrefix(text))
			}
		})
		defer stop()
		do(s.Client(t))
	}
	services := func(api kubernetes.Interface) func(name, ip string, policy corev1.IPFamilyPolicy) ([]string, error) {
		return func(name, ip string, policy corev1.IPFamilyPolicy) ([]string, error) {
			s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{ClusterIP: ip, IPFamilyPolicy: &policy, Ports: []corev1.ServicePort{{Port: 80}}}}
			s, err := api.CoreV1().Services("default").Create(t.Context(), s, metav1.CreateOptions{})
			if err != nil {
				return nil, err
			}
			return s.Spec.ClusterIPs, nil
		}
	}
	// stays holds the range, the Service kubernetes and its address to those of the first start.
	stays := func(api kubernetes.Interface, cidrs ...string) {
		t.Helper()
		r, err := api.NetworkingV1().ServiceCIDRs().Get(t.Context(), "kubernetes", metav1.GetOptions{})
		if err != nil || !slices.Equal(r.Spec.CIDRs, cidrs) || len(r.Status.Conditions) != 1 || r.Status.Conditions[0].Status != metav1.ConditionTrue {
			t.Errorf("the default range is %v, %v, %v; want %q, ready", r.Spec, r.Status, err, cidrs)
		}
		s, err := api.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
		if err != nil || s.Spec.ClusterIP != "10.43.0.1" {
			t.Errorf("the Service kubernetes has %q, %v", s.Spec.ClusterIP, err)
		}
		if _, err := api.NetworkingV1().IPAddresses().Get(t.Context(), "10.99.0.1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("an address of no Service is taken: %v", err)
		}
	}
	with(func(api kubernetes.Interface) {
		stays(api, "10.43.0.0/24")
		if ips, err := services(api)("first", "", corev1.IPFamilyPolicySingleStack); err != nil || !strings.HasPrefix(ips[0], "10.43.0.") {
			t.Errorf("%v, %v", ips, err)
		}
		if got := rangeEvents(t, api); len(got) > 0 {
			t.Errorf("events of a new cluster: %q", got)
		}
	}, "10.43.0.0/24")

	for range 2 { // the second start tells nothing new
		with(func(api kubernetes.Interface) {
			stays(api, "10.43.0.0/24")
			want := []string{"The default ServiceCIDR [10.43.0.0/24] does not match the controller flag configurations [10.99.0.0/24]"}
			if got := rangeEvents(t, api); !slices.Equal(got, want) {
				t.Errorf("events %q, want %q", got, want)
			}
			if _, err := services(api)("outside", "10.99.0.9", corev1.IPFamilyPolicySingleStack); err == nil || !strings.Contains(err.Error(), "the provided network does not match the current range") {
				t.Errorf("an address of the flags' range, which no ServiceCIDR has: %v", err)
			}
		}, "10.99.0.0/24")
	}
	with(func(api kubernetes.Interface) {
		for _, name := range []string{"second", "third"} {
			if ips, err := services(api)(name, "", corev1.IPFamilyPolicySingleStack); err != nil || !strings.HasPrefix(ips[0], "10.43.0.") {
				t.Errorf("%v, %v", ips, err)
			}
		}
		// The cure that upstream's documentation names: one more range.
		more := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.99.0.0/24"}}}
		more, err := api.NetworkingV1().ServiceCIDRs().Create(t.Context(), more, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		more.Status.Conditions = []metav1.Condition{{Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue, Reason: "Test", LastTransitionTime: metav1.Now()}}
		if _, err := api.NetworkingV1().ServiceCIDRs().UpdateStatus(t.Context(), more, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if ips, err := services(api)("fourth", "10.99.0.9", corev1.IPFamilyPolicySingleStack); err != nil || ips[0] != "10.99.0.9" {
			t.Errorf("%v, %v", ips, err)
		}
	}, "10.99.0.0/24")

	with(func(api kubernetes.Interface) {
		stays(api, "10.43.0.0/24", "fd00:43::/112")
		if ips, err := services(api)("both", "", corev1.IPFamilyPolicyRequireDualStack); err != nil || len(ips) != 2 || !strings.HasPrefix(ips[0], "10.43.0.") || !strings.HasPrefix(ips[1], "fd00:43::") {
			t.Errorf("%v, %v", ips, err)
		}
	}, "10.43.0.0/24", "fd00:43::/112")
}

// rangeEvents are what is said of ServiceCIDRs that are others than the flags'.
func rangeEvents(t *testing.T, api kubernetes.Interface) (messages []string) {
	t.Helper()
	all, err := api.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=ServiceCIDR,reason=KubernetesDefaultServiceCIDRInconsistent"})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all.Items {
		messages = append(messages, e.Message)
	}
	return messages
}
