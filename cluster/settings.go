package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
)

// settings are the flags that all servers of a cluster must have alike, by their
// names; in the file of one server also whether it has a node.
type settings map[string]string

// shared are those flags of these options.
func (o *Options) sharedFlags() map[string]*string {
	return map[string]*string{
		"cluster-cidr": &o.ClusterCIDR, "service-cidr": &o.ServiceCIDR, "service-node-port-range": &o.ServiceNodePorts,
		"cluster-dns": &o.ClusterDNS, "cluster-domain": &o.ClusterDomain, "flannel-backend": &o.FlannelBackend,
		"cloud-provider": &o.CloudProvider,
	}
}

// everywhere are the parts that run on all servers and nodes, or on none.
var everywhere = []string{"coredns", "kube-proxy", "local-storage", "metrics-server", "network", networkPolicy, serviceLB, ingressPart}

// settings are what further servers must have as this one has it.
func (o *Options) settings() settings {
	all := settings{}
	for flag, value := range o.sharedFlags() {
		all[flag] = *value
	}
	all["cluster-dns"] = o.clusterDNS.String()
	all["https-listen-port"] = fmt.Sprint(o.HTTPSListenPort) // the Service kubernetes has one
	all["disable"] = strings.Join(slices.DeleteFunc(slices.Clone(everywhere), func(p string) bool { return !o.disabled(p) }), ",")
	return all
}

// write leaves them for commands on this machine.
func (have settings) write(l layout) error {
	b, err := json.Marshal(have)
	if err != nil {
		return err
	}
	return writeFile(l.settings(), append(b, '\n'), 0o644)
}

// readSettings reads what write left. There is nothing where no server was started yet.
func (l layout) readSettings() (have settings, err error) {
	b, err := os.ReadFile(l.settings())
	if errors.Is(err, os.ErrNotExist) {
		return settings{}, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &have)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", l.settings(), err)
	}
	return have, nil
}

// without says that no server or node of the cluster runs a part.
func (have settings) without(part string) bool {
	return slices.Contains(strings.Split(have["disable"], ","), part)
}

// inherit takes over what the cluster's other servers have, and refuses flags
// that say otherwise.
func (o *Options) inherit(have settings) error {
	var f faults
	differ := func(flag, mine, theirs string) {
		f.add(flag, "%s: the cluster has %s, and its servers must agree; give that or leave the flag out", mine, theirs)
	}
	given := func(flag string) bool { return o.given != nil && o.given(flag) }
	for flag, value := range o.sharedFlags() {
		theirs, ok := have[flag]
		if ok && given(flag) && *value != theirs {
			differ(flag, *value, theirs)
		}
		if ok {
			*value = theirs
		}
	}
	if port, ok := have["https-listen-port"]; ok {
		if mine := fmt.Sprint(o.HTTPSListenPort); given("https-listen-port") && mine != port {
			differ("https-listen-port", mine, port)
		}
		if _, err := fmt.Sscan(port, &o.HTTPSListenPort); err != nil {
			f.add("https-listen-port", "the cluster has %q, which is no port", port)
		}
	}
	for _, part := range everywhere {
		theirs := have.without(part)
		switch mine := o.disabled(part); {
		case mine && !theirs:
			f.add("disable", "%s: the cluster runs it, and its servers must agree; leave it out", part)
		case theirs && !mine && given("disable"):
			f.add("disable", "%s: the cluster does not run %s, and its servers must agree; add it or leave the flag out", strings.Join(o.Disable, ","), part)
		case theirs && !mine:
			o.Disable = append(o.Disable, part)
		}
	}
	o.shared(&f)
	return errors.Join(f.errs...)
}

// A peerState is what a server keeps that is, or was, one of several.
type peerState struct {
	// Name is that of the server and of its member of etcd.
	Name     string   `json:"name"`
	Settings settings `json:"settings"`
	// Several says that others may be there: etcd opens its port to them.
	Several bool `json:"several"`
	// Servers are the other servers' URLs, where this one takes its leave.
	Servers []string `json:"servers,omitempty"`
}

// readPeerState reads it; nil for a server that was always alone.
func (l layout) readPeerState() (*peerState, error) {
	b, err := os.ReadFile(l.peerStateFile())
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil, nil
	}
	p := &peerState{}
	if err == nil {
		err = json.Unmarshal(b, p)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", l.peerStateFile(), err)
	}
	return p, nil
}

func (l layout) writePeerState(p *peerState) error {
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return writeFile(l.peerStateFile(), append(b, '\n'), 0o600)
}
