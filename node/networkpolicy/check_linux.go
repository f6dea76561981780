package networkpolicy

import (
	"fmt"

	"github.com/google/nftables"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/nft"
)

// Check writes all that policies may need into the network namespace of the
// calling thread, and says what the kernel refuses. It is for a namespace that
// ends afterwards.
func Check() error {
	k, err := newNFTables("knarr-check")
	if err != nil {
		return err
	}
	defer k.Close()
	ix := newIndex("check")
	o := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "check", Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 80}}}}}}
	o.Namespace, o.Name = metav1.NamespaceDefault, "check"
	o.Status.PodIPs = []corev1.PodIP{{IP: "10.42.0.2"}, {IP: "fd42::2"}}
	name := cache.MetaObjectToName(o)
	ix.setPod(name, podOf(o, "check"))
	ix.setPolicy(name, plan(checkPolicy(o)))
	refused, err := k.Apply(ix.whole(), true)
	if err != nil {
		return err
	}
	if err := refused[name]; err != nil {
		return fmt.Errorf("rules of a NetworkPolicy: %w", err)
	}
	return nil
}

// checkPolicy looks up sets of each kind.
func checkPolicy(o *corev1.Pod) *networkingv1.NetworkPolicy {
	named, first, last := intstr.FromString("http"), intstr.FromInt32(80), int32(90)
	udp := corev1.ProtocolUDP
	ports := []networkingv1.NetworkPolicyPort{{Port: &named}, {Port: &first, EndPort: &last}, {Protocol: &udp}}
	peers := []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}, {IPBlock: &networkingv1.IPBlock{CIDR: "10.0.0.0/8"}}, {IPBlock: &networkingv1.IPBlock{CIDR: "fd00::/8"}}}
	return &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name}, Spec: networkingv1.NetworkPolicySpec{
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
		Ingress:     []networkingv1.NetworkPolicyIngressRule{{From: peers, Ports: ports}},
		Egress:      []networkingv1.NetworkPolicyEgressRule{{To: peers, Ports: ports}},
	}}
}

// Remove takes a table away, if it is there.
func Remove(table string) error {
	c, err := nft.Open()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	t := &nftables.Table{Name: table, Family: nftables.TableFamilyINet}
	c.AddTable(t) // so that there is one to delete
	c.DelTable(t)
	if err := c.Flush(); err != nil {
		return fmt.Errorf("remove nftables table %s: %w", table, err)
	}
	return nil
}
