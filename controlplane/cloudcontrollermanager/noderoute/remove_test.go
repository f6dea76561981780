package noderoute

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cloudprovider "k8s.io/cloud-provider"

	"knarr/internal/apitest"
)

// deleted are the routes that a provider was told to delete.
type deleted struct {
	cloudprovider.Routes
	ranges []string
}

func (d *deleted) DeleteRoute(_ context.Context, _ string, r *cloudprovider.Route) error {
	d.ranges = append(d.ranges, r.DestinationCIDR)
	return nil
}

// TestStaleCache: the route of a node that the cache has not seen yet stays.
func TestStaleCache(t *testing.T) {
	s, stop := apitest.New(t)
	defer stop()
	client := s.Client(t)
	if _, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"},
		Spec: corev1.NodeSpec{PodCIDR: "10.42.1.0/24", PodCIDRs: []string{"10.42.1.0/24"}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	d := &deleted{}
	r := &reconciler{Config: Config{Routes: d}, client: client}
	for _, route := range []*cloudprovider.Route{route("n", "10.42.1.0/24"), route("n", "10.42.2.0/24"), route("gone", "10.42.3.0/24"), route("", "10.42.4.0/24")} {
		if err := r.remove(t.Context(), route); err != nil {
			t.Error(err)
		}
	}
	if len(d.ranges) != 3 || d.ranges[0] != "10.42.2.0/24" {
		t.Errorf("deleted %v", d.ranges)
	}
}
