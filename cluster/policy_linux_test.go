package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netns"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"knarr/internal/apitest"
	"knarr/internal/need"
	"knarr/internal/run"
	"knarr/node/cni/network"
	"knarr/node/networkpolicy"
)

// TestNewPodIsHeldToItsPolicies: what the CNI plugin writes is what the network
// policies of a node read: a pod is isolated and opened by its UID alone, before
// the API has an address of it.
func TestNewPodIsHeldToItsPolicies(t *testing.T) {
	need.Root(t)
	api, stop := apitest.New(t)
	defer stop()
	client := api.Client(t)
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := client.CoreV1().ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	check(err)
	_, err = client.NetworkingV1().NetworkPolicies("default").Create(t.Context(), &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "deny"}}, metav1.CreateOptions{})
	check(err)
	pod, err := client.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, metav1.CreateOptions{})
	check(err)

	check(run.OnThread("node", func() error {
		node, err := netns.New()
		if err != nil {
			return err
		}
		defer node.Close()
		c, err := networkpolicy.New(networkpolicy.Config{Kube: api.Config(&user.DefaultInfo{Name: "system:kube-proxy"}), NodeName: "n1", Table: "test-policy"})
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		run.Go("network policies", func() {
			ended <- run.OnThread("network policies", func() error {
				if err := netns.Set(node); err != nil {
					return err
				}
				return c.Run(ctx)
			})
		})
		defer func() { cancel(); <-ended }()
		if err := eventually(func() bool {
			return len(elements("test-policy", "own4")) == 0 && isThere("test-policy", "policy-ingress-")
		}); err != nil {
			return fmt.Errorf("the policy's chain: %w", err)
		}
		if err := addPod(t, node, string(pod.UID)); err != nil {
			return err
		}
		return eventually(func() bool {
			in := elements("test-policy", "ingress4")
			return len(in) == 1 && bytes.Equal(in[0].Key, netip.MustParseAddr("10.9.9.2").AsSlice()) && len(elements("test-policy", networkpolicy.NewPods4)) == 0
		})
	}))
}

// addPod has the plugin attach a pod.
func addPod(t *testing.T, node netns.NsHandle, uid string) error {
	pod, err := netns.New()
	if err != nil {
		return err
	}
	defer pod.Close()
	if err := netns.Set(node); err != nil {
		return err
	}
	ranges := []netip.Prefix{netip.MustParsePrefix("10.9.9.0/24")}
	conf := &network.Conf{
		CNIVersion: "1.0.0", Name: "test", Type: "knarr-cni", Bridge: "knarr-test", Table: "test-cni", StateDir: t.TempDir(), PodCIDRs: ranges, ClusterCIDRs: ranges,
		NewPods: &network.NewPods{Table: "test-policy", IPv4: networkpolicy.NewPods4, IPv6: networkpolicy.NewPods6},
	}
	in, err := json.Marshal(conf)
	if err != nil {
		return err
	}
	env := map[string]string{
		"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "sandbox", "CNI_IFNAME": "eth0", "CNI_NETNS": fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(pod)),
		"CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=a;K8S_POD_UID=" + uid,
	}
	var out bytes.Buffer
	if code := network.Command(nil, func(name string) string { return env[name] }, bytes.NewReader(in), &out); code != 0 {
		return fmt.Errorf("ADD: %s", out.String())
	}
	return nil
}

// eventually asks until it is so, for ten seconds.
func eventually(ok func() bool) error {
	for end := time.Now().Add(10 * time.Second); ; {
		if ok() {
			return nil
		}
		if time.Now().After(end) {
			return context.DeadlineExceeded
		}
		<-time.After(5 * time.Millisecond)
	}
}

// elements are those of the set of a table whose name ends so.
func elements(table, end string) (all []nftables.SetElement) {
	c, err := nftables.New()
	if err != nil {
		return nil
	}
	t := &nftables.Table{Name: table, Family: nftables.TableFamilyINet}
	sets, err := c.GetSets(t)
	if err != nil {
		return nil
	}
	for _, s := range sets {
		if strings.HasSuffix(s.Name, end) {
			s.Table = t
			list, _ := c.GetSetElements(s)
			all = append(all, list...)
		}
	}
	return all
}

// isThere says whether a table has a chain with this in its name.
func isThere(table, part string) bool {
	c, err := nftables.New()
	if err != nil {
		return false
	}
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return false
	}
	for _, ch := range chains {
		if ch.Table.Name == table && strings.Contains(ch.Name, part) {
			return true
		}
	}
	return false
}
