package instances

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cloudprovider "k8s.io/cloud-provider"
)

// An old provider has Instances and Zones only, and no answers by provider ID.
type old struct {
	cloudprovider.Interface
	cloudprovider.Instances
	id      string
	idError error
	exists  bool
}

func (o *old) ProviderName() string                                       { return "old" }
func (o *old) InstancesV2() (cloudprovider.InstancesV2, bool)             { return nil, false }
func (o *old) Zones() (cloudprovider.Zones, bool)                         { return nil, false }
func (o *old) InstanceID(context.Context, types.NodeName) (string, error) { return o.id, o.idError }
func (o *old) NodeAddressesByProviderID(context.Context, string) ([]corev1.NodeAddress, error) {
	return nil, errors.New("no")
}
func (o *old) NodeAddresses(_ context.Context, n types.NodeName) ([]corev1.NodeAddress, error) {
	return []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: string(n)}}, nil
}
func (o *old) InstanceTypeByProviderID(_ context.Context, id string) (string, error) {
	return "type of " + id, nil
}
func (o *old) InstanceExistsByProviderID(context.Context, string) (bool, error) { return o.exists, nil }
func (o *old) InstanceShutdownByProviderID(context.Context, string) (bool, error) {
	return true, cloudprovider.NotImplemented
}

// provider has the old interface beneath Instances.
type provider struct{ *old }

func (p provider) Instances() (cloudprovider.Instances, bool) { return p.old, true }

func TestOldInterface(t *testing.T) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	for name, c := range map[string]struct {
		old              old
		exists, metadata string
	}{
		"there":                  {old{id: "7", exists: true}, "true <nil>", "old://7 type of old://7 [{Hostname n}] <nil>"},
		"gone":                   {old{id: "7"}, "false <nil>", "old://7 type of old://7 [{Hostname n}] <nil>"},
		"not found":              {old{idError: cloudprovider.InstanceNotFound}, "false <nil>", "instance not found"},
		"no answer":              {old{idError: errors.New("throttled")}, "false failed to get instance ID from cloud provider: throttled", "failed to get instance ID from cloud provider: throttled"},
		"provider IDs not known": {old{idError: cloudprovider.NotImplemented}, "false unimplemented", " type of  [{Hostname n}] <nil>"},
	} {
		a, err := New(provider{&c.old})
		if err != nil {
			t.Fatal(err)
		}
		exists, err := a.Exists(t.Context(), n)
		if got := fmt.Sprint(exists, " ", err); got != c.exists {
			t.Errorf("%s: exists %s, want %s", name, got, c.exists)
		}
		m, err := a.Metadata(t.Context(), n)
		got := fmt.Sprint(err)
		if err == nil {
			got = fmt.Sprint(m.ProviderID, " ", m.InstanceType, " ", m.NodeAddresses, " ", err)
		}
		if got != c.metadata {
			t.Errorf("%s: metadata %s, want %s", name, got, c.metadata)
		}
		if off, err := a.Shutdown(t.Context(), n); off || err != nil && c.old.idError == nil {
			t.Errorf("%s: shutdown %t, %v", name, off, err)
		}
	}
}

// A silent provider answers when the question is withdrawn.
type silent struct{ cloudprovider.Interface }

func (silent) InstancesV2() (cloudprovider.InstancesV2, bool) { return silent{}, true }
func (silent) InstanceExists(ctx context.Context, _ *corev1.Node) (bool, error) {
	<-ctx.Done()
	return false, ctx.Err()
}
func (silent) InstanceShutdown(ctx context.Context, _ *corev1.Node) (bool, error) {
	<-ctx.Done()
	return true, ctx.Err()
}
func (silent) InstanceMetadata(ctx context.Context, _ *corev1.Node) (*cloudprovider.InstanceMetadata, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, err := New(silent{})
		if err != nil {
			t.Fatal(err)
		}
		n := &corev1.Node{}
		for name, ask := range map[string]func() error{
			"exists": func() error { _, err := a.Exists(t.Context(), n); return err },
			"shutdown": func() error {
				off, err := a.Shutdown(t.Context(), n)
				if off {
					return nil
				}
				return err
			},
			"metadata":  func() error { _, err := a.Metadata(t.Context(), n); return err },
			"addresses": func() error { _, err := a.Addresses(t.Context(), n); return err },
		} {
			if err := ask(); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}
