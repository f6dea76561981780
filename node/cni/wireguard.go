package cni

import (
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// WireGuard encrypts what nodes send each other for their pods. A node's public key is an
// annotation of its Node, the only thing that a node writes of itself; the private one is
// in its state directory and leaves it only for the kernel. Which addresses may come from
// a node is decided as for its other ways, by its Node's ranges.
const publicKeyAnnotation = "knarr.dev/wireguard-public-key"

const (
	wireguardPort = 51820
	// wireguardOverhead is what it adds to each packet, over IPv6 and with padding.
	wireguardOverhead = 80
)

// privateKey is this node's, made when first asked for.
func privateKey(stateDir string) (*ecdh.PrivateKey, error) {
	file := filepath.Join(stateDir, "wireguard.key")
	b, err := os.ReadFile(file)
	if err == nil {
		raw, err := base64.StdEncoding.DecodeString(string(b))
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
		return ecdh.X25519().NewPrivateKey(raw)
	}
	if !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return nil, err
	}
	next := file + ".new"
	if err := os.WriteFile(next, []byte(base64.StdEncoding.EncodeToString(key.Bytes())), 0o600); err != nil {
		return nil, err
	}
	return key, os.Rename(next, file)
}

// publishKey writes a node's public key into its Node.
func publishKey(ctx context.Context, kube *rest.Config, node string, key wireguardKey) error {
	client, err := kubernetes.NewForConfig(kube)
	if err != nil {
		return fmt.Errorf("key of the encrypted tunnel: %w", err)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{
		publicKeyAnnotation: base64.StdEncoding.EncodeToString(key[:]),
	}}})
	if err != nil {
		return err
	}
	if _, err := client.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("publish the key of the encrypted tunnel: %w", err)
	}
	return nil
}

// publicKey is what a Node says, or none. Pure.
func publicKey(n *corev1.Node) (key wireguardKey, ok bool) {
	raw, err := base64.StdEncoding.DecodeString(n.Annotations[publicKeyAnnotation])
	if err != nil || len(raw) != len(key) || [len(key)]byte(raw) == (wireguardKey{}) {
		return key, false
	}
	return wireguardKey(raw), true
}

type wireguardKey [32]byte

// A wireguardPeer is another node as the kernel has it.
type wireguardPeer struct {
	key      wireguardKey
	endpoint netip.AddrPort
	ranges   []netip.Prefix
}

// wireguardPeers gives those of nodes that have a key, each key once. Pure.
func wireguardPeers(peers []peer, v6 bool) (all []wireguardPeer) {
	seen := map[wireguardKey]bool{}
	for _, p := range peers {
		host, ok := p.host(v6)
		if !ok || p.key == (wireguardKey{}) || seen[p.key] {
			continue
		}
		seen[p.key] = true
		all = append(all, wireguardPeer{p.key, netip.AddrPortFrom(host, wireguardPort), p.ranges})
	}
	return all
}

// encrypt makes the encrypted tunnel be there and lead to these nodes and no others.
func encrypt(c Config, peers []peer) error {
	all := wireguardPeers(peers, c.underlay().Is6())
	if len(all) == 0 {
		return removeLink(c.Tunnel)
	}
	key, err := privateKey(c.StateDir)
	if err != nil {
		return fmt.Errorf("key of the encrypted tunnel: %w", err)
	}
	link, err := ensureWireguard(c)
	if err != nil {
		return err
	}
	if err := setWireguard(link.Attrs().Index, key.Bytes(), wireguardPort, all); err != nil {
		return fmt.Errorf("peers of %s: %w", c.Tunnel, err)
	}
	want := map[string]bool{}
	var errs []error
	for _, p := range all {
		for _, r := range p.ranges {
			want[r.String()] = true
			route := netlink.Route{Dst: ipnet(r), LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK, Protocol: protocol}
			if err := netlink.RouteReplace(&route); err != nil {
				errs = append(errs, fmt.Errorf("add the route %s: %w", route, err))
			}
		}
	}
	return errors.Join(append(errs, forget(link, want))...)
}

// ensureWireguard makes the link be there, with this node's addresses of tunnels.
func ensureWireguard(c Config) (netlink.Link, error) {
	under, err := linkOf(c.underlay())
	if err != nil {
		return nil, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = c.Tunnel, under.Attrs().MTU-wireguardOverhead
	link, err := netlink.LinkByName(c.Tunnel)
	if err == nil && (link.Type() != "wireguard" || link.Attrs().MTU != attrs.MTU) {
		if err := removeLink(c.Tunnel); err != nil {
			return nil, err
		}
		err = netlink.LinkNotFoundError{}
	}
	if err != nil {
		err := netlink.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs})
		if errors.Is(err, unix.EOPNOTSUPP) {
			return nil, fmt.Errorf("add tunnel %s: this kernel has no WireGuard (CONFIG_WIREGUARD); start the server with --flannel-backend=vxlan for a tunnel that is not encrypted", c.Tunnel)
		}
		if err != nil {
			return nil, fmt.Errorf("add tunnel %s: %w", c.Tunnel, err)
		}
		if link, err = netlink.LinkByName(c.Tunnel); err != nil {
			return nil, fmt.Errorf("tunnel %s: %w", c.Tunnel, err)
		}
	}
	return link, c.addressTunnel(link)
}
